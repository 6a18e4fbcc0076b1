"""One study on a Dask cluster, split over its workers, against one worker that does it all.

Four workers cannot be four times as quick on fewer processors, so what is compared is the processor
time that their work takes together. The wall clock is compared for two workers, where there are two
processors.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from inputs import Inputs, info
from measure import BenchError, Row, nearfar, row, run

NAME = "split"
SUMMARY = "one study of `nearfar sweep --dask` over four workers against one: efficiency"
WORKERS = 4
STUDY = 'study = "paging"\n[options]\ntrace = "{}"\npage_sizes = "512,1K,...,2M"\nview = "paper"\n'
#: How long a cluster may take to start, seconds.
PATIENCE = 120


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """13 page sizes x 10 memory sizes, alternating; the engine has one thread in each part."""
    if find_spec("distributed") is None:
        inputs.remarks.append(f"{NAME} skipped: distributed is not installed")
        return []
    cores = len(os.sched_getaffinity(0))
    counts = [1, 2, WORKERS] if cores > 1 else [1, WORKERS]
    trace = inputs.trace or inputs.zipf
    file = inputs.scratch / "split.toml"
    file.write_text(STUDY.format(trace.resolve()))
    spent: dict[int, list[list[float]]] = {count: [] for count in counts}
    wall: dict[int, list[float]] = {count: [] for count in counts}
    results = set()
    for _ in range(rounds):
        for count in counts:
            out = inputs.scratch / "split"
            seconds, processors = _sweep(inputs, file, out, count)
            wall[count].append(seconds)
            spent[count].append(processors)
            results.add((out / "result" / "result.parquet").read_bytes())
            shutil.rmtree(out)
    if len(results) != 1:
        raise BenchError("split: the result is not the same for every number of workers")
    ones = [sum(one) for one in spent[1]]
    fours = [sum(one) for one in spent[WORKERS]]
    busiest = [max(one) for one in spent[WORKERS]]
    pairs = list(zip(ones, fours, busiest, strict=True))
    note = f"{info(trace)['records']:,} records; 13 page sizes x 10 memory sizes"
    rows = [
        row(NAME, "one worker", ones, "s", cores=1, note=note),
        row(NAME, "four workers together", fours, "s", cores=cores),
        row(NAME, "efficiency, four workers", [one / four for one, four, _ in pairs], "of 1",
            goal=">= 0.8", cores=cores, note="processor time of one / of four together"),
        row(NAME, "one worker / busiest of four", [one / most for one, _, most in pairs], "x",
            cores=cores, note="processor time: what four processors could gain at most"),
    ]  # fmt: skip
    if 2 in wall:
        walls = zip(wall[1], wall[2], strict=True)
        rows.append(
            row(NAME, "efficiency, two workers, wall clock", [a / (2 * b) for a, b in walls],
                "of 1", cores=2, note="time of one / (2 x time of two)")
        )  # fmt: skip
    return rows


def _sweep(inputs: Inputs, file: Path, out: Path, count: int) -> tuple[float, list[float]]:
    """Seconds of the sweep on ``count`` workers, and processor seconds of each of these in it."""
    with _cluster(inputs.scratch, count) as (scheduler, workers):
        words = ["--dask", scheduler, "--parts", str(count), "-o", out]
        before = [_processor_seconds(worker) for worker in workers]
        began = time.monotonic()
        run(nearfar("sweep", file, *words), discard=True)
        seconds = time.monotonic() - began
        after = [_processor_seconds(worker) for worker in workers]
    return seconds, [b - a for a, b in zip(before, after, strict=True)]


@contextmanager
def _cluster(scratch: Path, count: int) -> Iterator[tuple[Path, list[int]]]:
    """A scheduler and workers of one thread; its file, and the workers' processes."""
    import distributed

    file = scratch / "scheduler.json"
    file.unlink(missing_ok=True)
    own = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
    processes = [_start(scratch, "scheduler", *own, "--port", "0")]
    try:
        until = time.monotonic() + PATIENCE
        while not file.exists():
            if processes[0].poll() is not None or time.monotonic() > until:
                raise BenchError("split: no scheduler starts; try `dask scheduler`")
            time.sleep(0.05)
        worker = ["worker", *own, "--nthreads", "1", "--no-nanny"]
        processes += [_start(scratch, *worker) for _ in range(count)]
        with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(count, timeout=PATIENCE)
        yield file, [process.pid for process in processes[1:]]
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def _start(scratch: Path, kind: str, *words: str) -> subprocess.Popen[bytes]:
    command: Sequence[str] = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words]
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, stdout=quiet, stderr=quiet, cwd=scratch)


def _processor_seconds(process: int) -> float:
    """User and system time of a process so far (proc(5))."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
