"""Watch a program by several methods; then limit its memory, and count its faults.

usage: measure.py JSON, an object with `program` (of load.py), `methods`, `seconds` of each watch,
`budget` (its share of a CPU), `parts` (limits as shares of the anonymous memory, largest first),
`rate` (requests a second), `folder` (for the program's files), `group` (path of a control group),
`package` (folder of nearfar's Python package), and seconds: `warm` before the first watch, `settle`
before a count, `count` of a count. Prints a line of JSON for each method and limit. Runs on the
host and in a guest, whose Python has none of nearfar's dependencies.
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
# Import nearfar.watch without its packages' __init__.py, whose dependencies the guest lacks.
for name in ("nearfar", "nearfar.watch"):
    package = types.ModuleType(name)
    package.__path__ = [str(Path(asked["package"], *name.split(".")[1:]))]
    sys.modules[name] = package

from nearfar.watch.methods import method  # noqa: E402
from nearfar.watch.target import Target, of_pid  # noqa: E402

PAGE = 4096
GROUP, FOLDER = Path(asked["group"]), Path(asked["folder"])
VERSION_2 = (GROUP / "cgroup.controllers").exists()
LIMIT = GROUP / ("memory.max" if VERSION_2 else "memory.limit_in_bytes")
USED = GROUP / ("memory.current" if VERSION_2 else "memory.usage_in_bytes")
#: Seconds between reads of the group's statistics, which update them: reclaim depends on them.
POLL_SECONDS = 0.003


def statistics() -> dict[str, int]:
    """The numbers of the group's ``memory.stat``."""
    lines = (GROUP / "memory.stat").read_text().splitlines()
    return {name: int(value) for name, value in map(str.split, lines)}


def counts(counter: Path) -> tuple[int, int, int, float]:
    """Resident anonymous bytes, swap-ins and requests so far, and the time in seconds."""
    stat = statistics()
    held = stat["active_anon"] + stat["inactive_anon"]
    done = struct.unpack("q", counter.read_bytes())[0]
    return held, stat["workingset_refault_anon"], done, time.monotonic()


def watch_by(name: str, pid: int, counter: Path) -> None:
    """Watch the program by a method, and print a line with the result."""
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
def polled() -> Iterator[None]:
    """Keep statistics fresh; otherwise the kernel may kill a process whose pages are active."""
    ended = threading.Event()

    def poll() -> None:
        while not ended.wait(POLL_SECONDS):
            statistics()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def limit_to(part: float, whole: int, counter: Path) -> None:
    """Limit memory to a share of the ``whole`` anonymous bytes, and print a line with faults."""
    with polled():
        held = counts(counter)[0]
        while held > part * whole + PAGE:
            other = int(USED.read_text()) - held
            step = max(part * whole, held - 0.02 * whole)
            with suppress(OSError):  # EBUSY: the kernel could not reclaim enough; try again
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
    """Swap everything in, by disabling and enabling swap."""
    kernel = ctypes.CDLL(None)
    for line in Path("/proc/swaps").read_text().splitlines()[1:]:
        device = line.split()[0].encode()
        if kernel.swapoff(device) or kernel.swapon(device, 0):
            raise SystemExit(f"{line}: swapoff fails")


def main() -> None:
    """Start the load, watch the program by each method, then count faults under each limit."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    counter = FOLDER / "counter"
    counter.write_bytes(bytes(8))
    words = [asked["program"], GROUP, FOLDER, asked["rate"], counter]
    load = [sys.executable, str(Path(__file__).with_name("load.py")), *map(str, words)]
    with subprocess.Popen(load, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        try:
            # `ready PID`.
            pid = int(client.stdout.readline().split()[1])
            time.sleep(asked["warm"])
            for name in asked["methods"]:
                watch_by(name, pid, counter)
                # These methods leave memory in swap.
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
