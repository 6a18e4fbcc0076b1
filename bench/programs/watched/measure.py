"""Watch a program by several methods; then give it less memory, and count its faults.

usage: measure.py JSON, an object with `program`, `methods`, `seconds` of each method, `budget`,
`parts` of its anonymous memory, largest first, `rate` of requests, `folder`, `group` (its path in
the file system), `package` (the folder of nearfar's), and seconds: `warm` before the first method,
`settle` before a count and `count`. Prints a line of JSON for each method and part. Runs on the
host and in a guest, which has none of the libraries that nearfar needs elsewhere.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

asked = json.loads(sys.argv[1])
for name in ("nearfar", "nearfar.watch"):
    package = types.ModuleType(name)
    package.__path__ = [str(Path(asked["package"], *name.split(".")[1:]))]
    sys.modules[name] = package

from nearfar.watch.methods import method  # noqa: E402
from nearfar.watch.target import Target, of_pid  # noqa: E402

PAGE = 4096
GROUP, FOLDER = Path(asked["group"]), Path(asked["folder"])
SECOND = (GROUP / "cgroup.controllers").exists()
LIMIT = GROUP / ("memory.max" if SECOND else "memory.limit_in_bytes")
USED = GROUP / ("memory.current" if SECOND else "memory.usage_in_bytes")
#: The kernel decides by statistics of the group, which reading them brings up to date.
FRESH = 0.003


def statistics() -> dict[str, int]:
    """Of the group."""
    lines = (GROUP / "memory.stat").read_text().splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def counts(counter: Path) -> tuple[int, int, int, float]:
    """Resident anonymous bytes, swap-ins, requests so far, and when."""
    stat = statistics()
    held = stat["active_anon"] + stat["inactive_anon"]
    done = struct.unpack("q", counter.read_bytes())[0]
    return held, stat["workingset_refault_anon"], done, time.monotonic()


def watch_by(name: str, pid: int, counter: Path) -> None:
    """Print what a method sees."""
    chosen = method(name)
    target = Target("group", group=GROUP) if name == "squeeze" else of_pid(pid)
    before = counts(counter)
    seen = chosen.watch(target, asked["seconds"], asked["budget"], lambda seconds: None)
    after = counts(counter)
    print(
        json.dumps(
            {
                "program": asked["program"],
                "method": name,
                "cycles": [
                    [(one.seconds, one.anonymous, one.file) for one in cycle]
                    for cycle in seen.cycles
                ],
                "refaults": [one.__dict__ for one in seen.refaults],
                "seconds": seen.seconds,
                "cost": seen.cost / seen.seconds,
                "anonymous": seen.last.private,
                "file": seen.last.file,
                "rate": (after[2] - before[2]) / (after[3] - before[3]),
                "faults": after[1] - before[1],
            }
        ),
        flush=True,
    )


@contextmanager
def fresh() -> Iterator[None]:
    """Bring statistics up to date all the time: else the kernel ends what has active pages only."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(FRESH):
            statistics()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def limit_to(part: float, whole: int, counter: Path) -> None:
    """Print what faults there are with a part of the anonymous memory."""
    with fresh():
        held = counts(counter)[0]
        while held > part * whole + PAGE:
            other = int(USED.read_text()) - held
            step = max(part * whole, held - 0.02 * whole)
            with suppress(OSError):  # busy: again
                LIMIT.write_text(str(int(step + other)))
            time.sleep(0.05)
            held = counts(counter)[0]
        time.sleep(asked["settle"])
        before, sizes = counts(counter), []
        until = time.monotonic() + asked["count"]
        while time.monotonic() < until:
            time.sleep(0.1)
            sizes.append(counts(counter)[0])
        after = counts(counter)
    print(
        json.dumps(
            {
                "program": asked["program"],
                "part": part,
                "whole": whole,
                "anonymous": sum(sizes) / len(sizes),
                "faults": after[1] - before[1],
                "requests": after[2] - before[2],
                "seconds": after[3] - before[3],
            }
        ),
        flush=True,
    )


def swap_in() -> None:
    """All that is in swap comes back."""
    kernel = ctypes.CDLL(None)
    for line in Path("/proc/swaps").read_text().splitlines()[1:]:
        device = line.split()[0].encode()
        if kernel.swapoff(device) or kernel.swapon(device, 0):
            raise SystemExit(f"{line}: swapoff fails")


def main() -> None:
    """See above."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    counter = FOLDER / "counter"
    counter.write_bytes(bytes(8))
    words = [asked["program"], GROUP, FOLDER, asked["rate"], counter]
    load = [sys.executable, str(Path(__file__).with_name("load.py")), *map(str, words)]
    with subprocess.Popen(load, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        try:
            pid = int(client.stdout.readline().split()[1])
            time.sleep(asked["warm"])
            for name in asked["methods"]:
                watch_by(name, pid, counter)
                if name in ("touch", "squeeze"):
                    swap_in()
            whole = counts(counter)[0]
            for part in asked["parts"]:
                limit_to(part, whole, counter)
        finally:
            for member in (GROUP / "cgroup.procs").read_text().split():
                os.kill(int(member), signal.SIGKILL)
            client.kill()


if __name__ == "__main__":
    main()
