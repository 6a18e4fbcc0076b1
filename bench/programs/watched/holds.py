"""Checks of the methods of `nearfar watch`: known working sets, squeezes, killed watchers.

usage: holds.py JSON, an object with `package` (folder of nearfar's Python package), `folder` (of
compiled programs), `group` (path of a control group), `methods`, `regions` (MiB of the working
sets), `seconds` of each watch, `squeezes` (number, and seconds of each) and `kills` (watchers to
kill for each method). Prints a line of JSON for each check.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

asked = json.loads(sys.argv[1])
# Import nearfar.watch without its packages' __init__.py, whose dependencies the guest lacks.
for name in ("nearfar", "nearfar.watch"):
    package = types.ModuleType(name)
    package.__path__ = [str(Path(asked["package"], *name.split(".")[1:]))]
    sys.modules[name] = package

from nearfar.watch.methods import ORDER, method  # noqa: E402
from nearfar.watch.target import Target, of_pid  # noqa: E402

GROUP, FOLDER = Path(asked["group"]), Path(asked["folder"])
#: Settings of the kernel that a watch must restore.
STATES = [
    *(GROUP / name for name in ("memory.max", "memory.high", "memory.low", "memory.swap.max")),
    Path("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds"),
    *(Path("/proc/sys/vm") / name for name in ("swappiness", "page-cluster")),
]


def say(**line: object) -> None:
    """Print a line."""
    print(json.dumps(line), flush=True)


@contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program in the group; the block starts once the program has printed a line."""

    def enter() -> None:
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))

    command = [FOLDER / words[0], *words[1:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=enter) as child:
        assert child.stdout is not None
        try:
            child.stdout.readline()
            yield child
        finally:
            child.kill()


def regions() -> None:
    """Compare measured working sets with the known one: the program uses one region at a time."""
    for name in asked["methods"]:
        for size in asked["regions"]:
            # Two regions, each used for 2 s at a time.
            with running("steps", "2", str(size), "2") as child:
                seen = method(name).watch(
                    of_pid(child.pid),
                    asked["seconds"],
                    share=0.5,
                    progress=lambda so_far: None,
                )
            # Windows of about 0.3 s: the region changes every 2 s, so most see only one.
            sets = sorted(
                min(cycle, key=lambda one: abs(one.seconds - 0.3)).anonymous / (size << 20)
                for cycle in seen.cycles
            )
            middle, upper = (sets[int(len(sets) * share)] for share in (0.5, 0.75))
            say(check="regions", method=name, mib=size, p50=middle, p75=upper, looks=len(sets))


def numbers(file: str) -> dict[str, int]:
    """Parse a file of the group whose lines are a name and a number."""
    return {
        words[0]: int(words[1]) for words in map(str.split, (GROUP / file).read_text().splitlines())
    }


def stalled() -> int:
    """Microseconds in which some task of the group stalled on memory."""
    return int((GROUP / "memory.pressure").read_text().split("total=")[1].split()[0])


def squeezes() -> None:
    """Squeeze a program repeatedly; report stalls and OOM kills."""
    count, seconds = asked["squeezes"]
    shares, before = [], numbers("memory.events")["oom_kill"]
    # Uses 16 of 64 MiB.
    with running("hot", "16", "64") as child:
        for _ in range(count):
            since, began = stalled(), time.monotonic()
            method("squeeze").watch(
                Target("holds", group=GROUP), seconds, share=0.5, progress=lambda so_far: None
            )
            shares.append((stalled() - since) / 1e6 / (time.monotonic() - began))
        alive = child.poll() is None
    killed = numbers("memory.events")["oom_kill"] - before
    say(check="squeezes", runs=count, killed=killed, stalled=sorted(shares), alive=alive)


def kills() -> None:
    """Kill watchers at random times; report settings that differ a second later."""
    draw = random.Random(1)
    with running("hot", "16", "64") as child:
        before = [file.read_text() for file in STATES]
        for name in ORDER:
            target = Target("holds", group=GROUP) if name == "squeeze" else of_pid(child.pid)
            for _ in range(asked["kills"]):
                watcher = os.fork()
                if not watcher:
                    method(name).watch(target, 30, share=0.5, progress=lambda so_far: None)
                    os._exit(0)
                time.sleep(draw.uniform(0.01, 2))
                os.kill(watcher, signal.SIGKILL)
                os.waitpid(watcher, 0)
                time.sleep(1)
                after = [file.read_text() for file in STATES]
                changed = [
                    f"{file}: {old} {new}"
                    for file, old, new in zip(STATES, before, after, strict=True)
                    if old != new
                ]
                say(check="killed", method=name, changed=changed, alive=child.poll() is None)


def main() -> None:
    """Run all checks; squeezes and kills only if `squeezes` is not empty."""
    GROUP.mkdir(exist_ok=True)
    regions()
    if asked["squeezes"]:
        squeezes()
        kills()


if __name__ == "__main__":
    main()
