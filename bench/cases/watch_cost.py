"""Overhead of ``nearfar watch`` on a server under full load, in short pairs with and without it.

Server and client keep two processors busy, so that the watcher competes with them; or they share
one processor, and the watcher has the other.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inputs import Inputs
from measure import BenchError, Row, judged, nearfar, row, run
from table import figures

NAME = "watch-cost"
SUMMARY = "Redis under load, with and without nearfar watch"

#: Bytes of a value. By size: the number of values, and the seconds of a watch.
VALUE = 1000
SIZES = {"100 MiB": (84_000, 60), "4 GiB": (3_450_000, 120)}
QUICK_SIZES = {"1 MiB": (1000, 60)}
#: Pairs, and seconds of each half: short, so that other work on the machine disturbs both alike.
PAIRS, QUICK_PAIRS = 150, 2
SECONDS, QUICK_SECONDS = 2.0, 0.5


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Measure pairs at each size, with two processors and with one for server and client."""
    del rounds
    if shutil.which("redis-benchmark") is None:
        inputs.remarks.append(f"{NAME} skipped: no redis-benchmark")
        return []
    made = []
    pairs, seconds = (QUICK_PAIRS, QUICK_SECONDS) if quick else (PAIRS, SECONDS)
    sizes = (QUICK_SIZES if quick else SIZES).items()
    for (size, (keys, watch)), spare in itertools.product(sizes, (False, True)):
        name = f"{size}, a processor to spare" if spare else size
        print(f"bench: {NAME}: {name}", file=sys.stderr)
        with server(inputs.scratch, spare) as (pid, wire, client):
            client = [*client, "-r", str(keys), "-q", "-P", "8"]
            run([*client, "-t", "set", "-d", str(VALUE), "-n", str(3 * keys)], discard=True)
            found = [*measured(pid, wire, [*client, "-t", "get", "-l"], watch, pairs, seconds)]
        losses = [1 - one[True][0] / one[False][0] for one in found]
        gains = [one[True][1] / one[False][1] - 1 for one in found]
        made += [
            lost(f"signed throughput lost, {name}", losses),
            lost(f"signed processor time a request gained, {name}", gains),
        ]
    return made


def lost(name: str, losses: list[float]) -> Row:
    """A row judged by the interval of the median, because other work disturbs some pairs."""
    return judged(row(NAME, name, losses, "", goal="<= 0.05"), losses)


@contextmanager
def server(scratch: Path, spare: bool) -> Iterator[tuple[int, socket.socket, list[str]]]:
    """A Redis server without persistence: its pid, a connection, and the client's command line.

    With ``spare``, server and client are pinned to one processor.
    """
    name = str(scratch / "watch-cost.sock")
    Path(name).unlink(missing_ok=True)
    pinned = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))] if spare else []
    words = ["redis-server", "--port", "0", "--unixsocket", name, "--save", ""]
    words += ["--appendonly", "no"]
    with subprocess.Popen([*pinned, *words], stdout=subprocess.DEVNULL) as child:
        try:
            while not Path(name).exists():
                if child.poll() is not None:
                    raise BenchError(f"{NAME}: redis-server ended with {child.returncode}")
                time.sleep(0.05)
            with socket.socket(socket.AF_UNIX) as wire:
                wire.connect(name)
                yield child.pid, wire, [*pinned, "redis-benchmark", "-s", name]
        finally:
            child.kill()


def measured(
    pid: int, wire: socket.socket, load: list[str], watch: int, pairs: int, seconds: float
) -> Iterator[dict[bool, tuple[float, float]]]:
    """For each pair, by whether the watcher runs: requests a second, CPU seconds a request."""
    options = ("--follow", "--for", f"{watch}s", "--swap", "zram", "--machine", "nvme")
    watcher = nearfar("watch", str(pid), *options)
    with (
        subprocess.Popen(load, stdout=subprocess.DEVNULL) as client,
        subprocess.Popen(
            watcher, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as observer,
    ):
        try:
            time.sleep(3 * seconds)
            for number in range(pairs):
                found = {}
                for watched in (number % 2 == 0, number % 2 != 0):
                    observer.send_signal(signal.SIGCONT if watched else signal.SIGSTOP)
                    before = counts(pid, wire)
                    time.sleep(seconds)
                    after = counts(pid, wire)
                    requests, used, passed = (
                        new - old for new, old in zip(after, before, strict=True)
                    )
                    found[watched] = requests / passed, used / requests
                if observer.poll() is not None:
                    assert observer.stderr is not None
                    last = observer.stderr.read().strip().splitlines()[-1]
                    raise BenchError(f"{NAME}: {last}")
                yield found
        finally:
            observer.kill()
            client.kill()


def counts(pid: int, wire: socket.socket) -> tuple[float, float, float]:
    """Requests and processor seconds of the server so far, and the time."""
    wire.sendall(b"INFO stats\r\n")
    text = b""
    while b"total_net_input_bytes" not in text:
        text += wire.recv(1 << 16)
    done = int(text.split(b"total_commands_processed:")[1].split()[0])
    while not text.endswith(b"\r\n"):
        text += wire.recv(1 << 16)
    # Nanoseconds on a processor, of the main thread, which serves all requests.
    used = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return done, used, time.monotonic()


#: Tables of docs/validation.md, by name.
TABLES = {"figures": figures(NAME)}
