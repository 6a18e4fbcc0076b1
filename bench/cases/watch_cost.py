"""What ``nearfar watch`` costs a server under full load, in alternating pairs."""

from __future__ import annotations

import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from inputs import Inputs
from measure import BenchError, Row, row, run
from table import recorded, summary

NAME = "watch-cost"
SUMMARY = "Redis under load, with and without nearfar watch"

#: Bytes of a value, how many there are by size, and how many pairs there are in a round.
VALUE = 1000
KEYS = {"100 MiB": 84_000, "4 GiB": 3_450_000}
QUICK_KEYS = {"1 MiB": 1000}
PAIRS, QUICK_PAIRS = 10, 2
#: Seconds of each half of a pair, about.
SECONDS, QUICK_SECONDS = 10.0, 1.0
#: Of Student's distribution, one side, 95 %, for so many pairs less one.
STUDENT = {1: 6.314, 9: 1.833}


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Pairs of each size; which half is watched alternates."""
    del rounds
    if shutil.which("redis-benchmark") is None:
        inputs.remarks.append(f"{NAME} skipped: no redis-benchmark")
        return []
    made = []
    for size, keys in (QUICK_KEYS if quick else KEYS).items():
        print(f"bench: {NAME}: {size}", file=sys.stderr)
        with server(inputs.scratch) as (pid, socket_name):
            asking = ["redis-benchmark", "-s", socket_name, "-r", str(keys), "-q", "-P", "8"]
            run([*asking, "-t", "set", "-d", str(VALUE), "-n", str(3 * keys)], discard=True)
            count = 20_000
            begun = time.monotonic()
            run([*asking, "-t", "get", "-n", str(count)], discard=True)
            seconds = QUICK_SECONDS if quick else SECONDS
            count = int(count * seconds / (time.monotonic() - begun))
            asking += ["-t", "get", "-n", str(count)]
            pairs = [
                pair(pid, asking, seconds, first=number % 2 == 0)
                for number in range(QUICK_PAIRS if quick else PAIRS)
            ]
        for what, losses in (
            ("throughput lost", [one[0] for one in pairs]),
            ("processor time a request gained", [one[1] for one in pairs]),
        ):
            made.append(lost(f"signed {what}, {size}", losses))
    return made


def lost(name: str, losses: list[float]) -> Row:
    """The mean, and what it is below with 95 %."""
    spread = statistics.stdev(losses) / math.sqrt(len(losses))
    bound = statistics.mean(losses) + STUDENT[len(losses) - 1] * spread
    note = f"mean {statistics.mean(losses):+.2%}, below {bound:+.2%} with 95 %"
    made = row(NAME, name, losses, "", note=note)
    if "throughput" not in name:
        return made
    return replace(made, goal="< 0.05 with 95 %", holds=bound < 0.05)


@contextmanager
def server(scratch: Path) -> Iterator[tuple[int, str]]:
    """A server without files."""
    name = str(scratch / "watch-cost.sock")
    words = ["redis-server", "--port", "0", "--unixsocket", name, "--save", "", "--appendonly"]
    with subprocess.Popen([*words, "no"], stdout=subprocess.DEVNULL) as child:
        try:
            for _ in range(600):
                with socket.socket(socket.AF_UNIX) as probe:
                    if probe.connect_ex(name) == 0:
                        break
                time.sleep(0.05)
            yield child.pid, name
        finally:
            child.kill()


def pair(pid: int, asking: list[str], seconds: float, *, first: bool) -> tuple[float, float]:
    """How much longer the requests take while it is watched, and how much more of a processor."""
    found: dict[bool, tuple[float, float]] = {}
    for watched in (first, not first):
        watch = [sys.executable, "-m", "nearfar", "watch", str(pid), "--for", f"{4 * seconds}s"]
        watch += ["--swap", "zram", "--machine", "nvme"]
        watcher = None
        if watched:
            watcher = subprocess.Popen(
                watch, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
            time.sleep(1)  # it starts
        before, begun = processor(pid), time.monotonic()
        run(asking, discard=True)
        found[watched] = time.monotonic() - begun, processor(pid) - before
        if watcher is not None:
            if watcher.poll() is not None:
                assert watcher.stderr is not None
                raise BenchError(f"{NAME}: {watcher.stderr.read().strip()}")
            watcher.kill()
            watcher.communicate()
    return 1 - found[False][0] / found[True][0], found[True][1] / found[False][1] - 1


def processor(pid: int) -> float:
    """Seconds of a processor that it has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def figures() -> str:
    """All rows, as a table of the docs."""
    return summary(recorded(NAME)["rows"])


#: By the name that the page has for it.
TABLES = {"figures": figures}
