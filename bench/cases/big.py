"""Samples of programs of several GiB: capture cost, and errors of the predicted swap-ins."""

from __future__ import annotations

import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import kernel
from inputs import Inputs, info
from measure import BenchError, Row, capture, nearfar, row, run
from programs import HERE
from table import recorded

from cases import kernel_faults
from nearfar.apply.measure import kib
from nearfar.processes import process_tree
from nearfar.report import terminal

NAME = "big"
SUMMARY = (
    "Redis of up to 8 GiB, a graph of 4 GiB: cost of a sample, and swap-ins beside the kernel's"
)

#: Redis: number of values of about 1000 bytes, and of reads. Graph: vertices, and searches.
SIZES = {
    "redis, 100 MiB": (80_000, 250_000),
    "redis, 1 GiB": (850_000, 500_000),
    "redis, 8 GiB": (6_800_000, 1_000_000),
    "graph, 4 GiB": (64_000_000, 1),
}
QUICK_SIZES = {"redis, 10 MiB": (8_000, 20_000), "graph, 7 MiB": (100_000, 1)}
#: Memory sizes, as shares of the program's anonymous pages.
PARTS = (0.75, 0.5)
#: Half of the reads hit 100 values.
PARETO_SHAPE = 0.15
#: Bytes of swap.
SWAP = 8 << 30
#: Seconds between polls of the processes' memory.
EVERY = 0.2
#: Predict with exact statistics, because polling keeps the kernel's statistics exact.
POLICY, OPTIONS = kernel_faults.PREDICTED["exact"]
STUDY = (*kernel_faults.STUDY, *kernel_faults.DEVICE, "--replacement", POLICY, *OPTIONS)


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Run each size without a memory limit and with little memory; then capture and study it."""
    del rounds
    missing = [name for name in ("redis-server", "gcc") if shutil.which(name) is None]
    if missing or not inputs.can_capture:
        inputs.remarks.append(f"{NAME} skipped: no {' or '.join(missing or ['QEMU'])}")
        return []
    try:
        where = kernel.controller(Path("/proc/mounts").read_text(encoding="ascii"))
        for name, (count, work) in (QUICK_SIZES if quick else SIZES).items():
            print(f"bench: {NAME}: {name}", file=sys.stderr)
            folder = inputs.scratch / f"{NAME}-{count}"
            folder.mkdir()
            make = _redis if name.startswith("redis") else _graph
            command = make(folder, count, work)
            cell = {"size": name, "count": count, "work": work, **counted(where, command)}
            cell |= recorded_and_studied(command, folder / "t.trace", cell["counts"])
            inputs.cells.append(cell)
            shutil.rmtree(folder)
    except kernel.Unavailable as error:
        inputs.remarks.append(f"{NAME} skipped: {error}")
        return []
    return rows(inputs.cells)


def _redis(folder: Path, keys: int, reads: int) -> list[str]:
    load = folder / "load.txt"
    load.write_text(_load(keys, reads), encoding="ascii")
    bash = shutil.which("bash") or "bash"
    return [bash, *map(str, (HERE / "big.sh", folder, keys, load))]


def _graph(folder: Path, vertices: int, searches: int) -> list[str]:
    program = str(folder / "graph")
    run(["gcc", "-O2", "-o", program, str(HERE / "graph.c")])
    return [program, str(vertices), str(searches)]


def _load(keys: int, reads: int) -> str:
    draw = random.Random(1)
    # The factor scatters values of similar popularity over memory.
    ranks = (int(draw.paretovariate(PARETO_SHAPE)) * 2_654_435_761 % keys for _ in range(reads))
    # Only 8 bytes of each value: `redis-cli --pipe` is slow with long replies.
    return "".join(f"GETRANGE key:{rank} 0 7\n" for rank in ranks)


def counted(where: kernel.Controller, command: list[str]) -> dict[str, Any]:
    """Run a program without a limit, then under limits; returns seconds, pages, major faults."""
    group = f"nearfar-bench-{os.getpid()}"
    with kernel.swapping(SWAP):
        began = time.monotonic()
        free = _ended(kernel.run_limited(where, command, None, group, poll=True))
        found = {"seconds": time.monotonic() - began, "pages": free.anonymous_pages, "counts": []}
        for part in PARTS:
            frames = int(free.anonymous_pages * part)
            limit = frames * kernel.PAGE + free.kernel_bytes
            ran = _ended(kernel.run_limited(where, command, limit, group, poll=True))
            found["counts"].append({"part": part, "frames": frames, "kernel": ran.major})
    return found


def _ended(ran: kernel.Finished) -> kernel.Finished:
    if ran.exit_code != 0 or ran.killed:
        raise BenchError(f"{NAME}: ended with {ran.exit_code}, {ran.killed} killed by the kernel")
    return ran


def recorded_and_studied(
    command: list[str], trace: Path, counts: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Capture and study a sample: seconds, bytes, peak memory. Adds predictions to ``counts``."""
    began = time.monotonic()
    with _Peak() as peak:
        capture(command, trace, kernel.ENVIRONMENT, "--sample", "auto", "--no-fetch")
    seconds = time.monotonic() - began
    known = info(trace)
    # A small program is recorded whole.
    sample = known["source"].get("sample", {"rate": 1.0, "references": {"all": known["records"]}})
    memory = ",".join(str(each["frames"] * kernel.PAGE) for each in counts)
    done = run(nearfar("paging", trace, "--memory", memory, *STUDY))
    found = {each["frames"]: each for each in done.json()["rows"]}
    for count in counts:
        cell = found[count["frames"]]
        other_faults = cell["faults"] - cell["swap_ins"]
        # Rates of a whole record have no interval.
        low, high = (
            cell["swap_ins"]
            if cell[name] is None
            else cell[name] * cell["references"] - other_faults
            for name in ("fault_rate_low", "fault_rate_high")
        )
        # Negative if the interval of all faults begins below the number of other faults.
        count |= {"predicted": cell["swap_ins"], "low": max(low, 0), "high": high}
    return {
        "rate": sample["rate"],
        "references": sum(sample["references"].values()),
        "records": known["records"],
        "trace_bytes": sum(part["bytes"] for part in known["parts"]),
        "capture_seconds": seconds,
        "capture_bytes": peak.bytes,
        "study_seconds": done.seconds,
        "study_bytes": done.peak_bytes,
    }


class _Peak:
    """Sum of the peak memory of this process's descendants, without QEMU's."""

    def __init__(self) -> None:
        self._ended, self._most = threading.Event(), dict[int, int]()
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @property
    def bytes(self) -> int:
        return sum(self._most.values()) * 1024

    def _poll(self) -> None:
        while not self._ended.wait(EVERY):
            for pid in process_tree(os.getpid()):
                with suppress(OSError):
                    program = Path(f"/proc/{pid}/exe").readlink().name
                    if pid != os.getpid() and not program.startswith("qemu"):
                        self._most[pid] = kib(pid, "status", "VmHWM:") or self._most.get(pid, 0)


def rows(cells: Sequence[dict[str, Any]]) -> list[Row]:
    """Costs by size, and errors of the predictions."""
    made = []
    for cell in cells:
        size = cell["size"]
        times = [cell["capture_seconds"] / cell["seconds"]]
        made.append(row(NAME, f"capture / program alone, {size}", times, "x"))
        capture = [cell["capture_seconds"]]
        made.append(row(NAME, f"capture, {size}", capture, "s", goal="<= 600"))
        made.append(row(NAME, f"study, {size}", [cell["study_seconds"]], "s", goal="<= 300"))
        for what in ("capture", "study"):
            memory = [cell[f"{what}_bytes"] / 2**20]
            made.append(row(NAME, f"peak memory, {what}, {size}", memory, "MiB", goal="<= 1024"))
        made.append(row(NAME, f"trace, {size}", [cell["trace_bytes"] / 2**20], "MiB"))
        for count in cell["counts"]:
            error = [100 * (count["predicted"] / max(count["kernel"], 1) - 1)]
            note = f"{count['kernel']:,} counted; {count['low']:,.0f} to {count['high']:,.0f}"
            title = f"signed error of swap-ins, {size}, {count['part']:.0%}"
            made.append(row(NAME, title, error, "%", note=note))
    counts = [count for cell in cells for count in cell["counts"]]
    inside = [count["low"] <= count["kernel"] <= count["high"] for count in counts]
    share = [sum(inside) / max(len(inside), 1)]
    made.append(row(NAME, "counts inside the 95 % interval", share, "of all"))
    return made


def growth() -> str:
    """Costs of capture and study, a line for each size."""
    lines = [
        "| program | references | sampled pages | alone | recorded | trace | studied "
        "| memory of nearfar |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for cell in recorded(NAME)["cells"]:
        words = [cell["size"], f"{cell['references'] / 1e9:.2f} G", f"{cell['rate']:.2%}"]
        words += [f"{cell[name]:.0f} s" for name in ("seconds", "capture_seconds")]
        words += [f"{cell['trace_bytes'] / 2**20:.0f} MiB", f"{cell['study_seconds']:.0f} s"]
        most = max(cell["capture_bytes"], cell["study_bytes"])
        lines.append(f"| {' | '.join([*words, f'{most / 2**20:.0f} MiB'])} |")
    return "\n".join(lines) + "\n"


def cells() -> str:
    """Counted and predicted swap-ins of each cell."""
    lines = [
        "| program | memory | swap-ins | predicted | 95 % interval |",
        "|---|---:|---:|---:|---|",
    ]
    for cell in recorded(NAME)["cells"]:
        for count in cell["counts"]:
            words = [cell["size"], f"{count['part']:.0%}", f"{count['kernel']:,}"]
            words += [f"{count['predicted']:,}", f"{count['low']:,.0f} to {count['high']:,.0f}"]
            lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def chart() -> str:
    """A text chart of Redis's seconds by memory: alone, captured, studied."""
    own = [cell for cell in recorded(NAME)["cells"] if cell["size"].startswith("redis")]
    series = [
        (label, [(cell["pages"] * kernel.PAGE, cell[name]) for cell in own])
        for label, name in (
            ("alone", "seconds"), ("recorded", "capture_seconds"), ("studied", "study_seconds")
        )
    ]  # fmt: skip
    return f"```text\n{terminal.by_size('seconds, by memory (redis)', series)}```\n"


#: Tables of docs/validation.md, by name.
TABLES = {"growth": growth, "chart": chart, "cells": cells}
