"""Measures the active swap: pages that the kernel writes to it and reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nearfar import _engine
from nearfar.errors import NearfarError
from nearfar.measure.bench import PAGE, Bench, Section, Sourced
from nearfar.measure.samples import Samples, size_text
from nearfar.numa.sources.sysfs import text_of

#: Bytes that each run writes to swap and reads back.
_RUN: Final = 4 << 20
_RUNS: Final = 5


def devices(root: Path = Path("/")) -> dict[str, int]:
    """Free bytes of each active swap area."""
    # Columns: name, type, size and used in KiB, priority.
    rows = [line.split() for line in text_of(root / "proc/swaps").splitlines()[1:]]
    return {row[0]: (int(row[2]) - int(row[3])) * 1024 for row in rows if len(row) >= 4}


def swap(bench: Bench, page_fault: float, root: Path = Path("/")) -> Section | None:
    """Measure swap as ``[storage.swap.nvme]``, whatever the device; None if impossible."""
    free = devices(root)
    if sum(free.values()) < 2 * _RUN:
        bench.notes.append("storage.swap: left out: no swap is on, or it is full")
        return None
    names = ", ".join(free)
    bench.say(f"swap {names}")
    pages = _RUN // PAGE
    out, back, faulted = [], [], []
    with bench.pinned():
        for _ in range(1 if bench.quick else _RUNS):
            memory = _engine.MappedMemory(_RUN, "small", None)
            memory.fill()
            try:
                out.append(memory.page_out() / pages)
            except NearfarError as error:
                bench.notes.append(f"storage.swap: left out: {error}")
                return None
            ns, faults = memory.read_at_random(PAGE)
            # Linux reads at most 32 pages per fault, so less than half of the pages were in swap.
            if faults * 64 < pages:
                bench.notes.append(f"storage.swap: left out: the kernel wrote little to {names}")
                return None
            back.append(ns / pages)
            # Noise may make the difference negative.
            faulted.append(max(ns / faults - page_fault, 1.0))
    key = "storage.swap.nvme"

    def rate(times: list[float]) -> Samples:
        return Samples(tuple(PAGE / ns * 1e9 for ns in times))

    what = f"pages of 4 KiB, every other word random, on {names}"
    written = f"{what}, written by the kernel on request (MADV_PAGEOUT)"
    return {
        "read_latency": bench.time(
            f"{key}.read_latency", Samples(tuple(faulted)), f"{what}, a fault minus one without I/O"
        ),
        "write_latency": bench.time(f"{key}.write_latency", Samples(tuple(out)), written),
        "measured_at": Sourced(size_text(PAGE), "a page"),
        "unit": Sourced(size_text(PAGE), "a page"),
        "read_bandwidth": bench.rate(
            f"{key}.read_bandwidth", rate(back), f"{what}, including pages read ahead"
        ),
        "write_bandwidth": bench.rate(f"{key}.write_bandwidth", rate(out), written),
    }
