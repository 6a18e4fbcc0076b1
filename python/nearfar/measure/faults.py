"""Measures the kernel's time for page faults, by page size, and for context switches."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from nearfar import _engine
from nearfar.apply.setting import BASE, RUNTIME, SYSFS, acting, applied, switches
from nearfar.errors import NearfarError
from nearfar.measure.bench import LARGE, Bench, Section, Sourced
from nearfar.measure.samples import Samples, size_text
from nearfar.sizes import short
from nearfar.units import size

#: Bytes touched by a run: short, so that interrupts disturb few runs.
_RUN: Final = 4 << 20
_RUNS, _QUICK_RUNS = 15, 3
#: In a virtual machine: maximum bytes touched to find memory that the host does not back.
_ROOM: Final = 4 << 30
#: A fault that takes this many times as long as on backed memory made the host allocate memory.
_HOST_ALLOCATES: Final = 2
#: Seconds until the host has reclaimed freed memory, if it does; a Linux guest reports free memory
#: after two.
_RECLAIM_SECONDS: Final = 3
#: How faults are timed. Back to back, they find the kernel in caches and branch predictors, and
#: take half the time.
_AMID: Final = "amid the loads and calls of a program"
_SMALLER: Final = "the kernel gave smaller pages; free memory may be fragmented"
#: Tries per run to find memory that the host does not back.
_TRIES: Final = 4
#: This many runs in which the host had to allocate memory are enough.
_ENOUGH: Final = 4
#: Slow runs in a row that show that the host allocates.
_SLOW_RUNS: Final = 8

#: Touched memory, kept so that the kernel does not hand it out again.
Held = list[_engine.MappedMemory]


def cost(bench: Bench) -> tuple[Section, float]:
    """``[cost]`` of a fault without clearing and of a context switch; and the nanoseconds of such a
    fault back to back with others."""
    bench.say("faults")
    with bench.pinned() as cpu:
        # A first read maps the zero page.
        bare = Samples(tuple(_zero_page_ns(None) for _ in range(_runs(bench))))
        work = _engine.ProgramWork()
        fault = Samples(tuple(_zero_page_ns(work) for _ in range(_runs(bench))))
        rounds = 200 if bench.quick else 2000
        switch = bench.repeat(lambda: min(_engine.measure_switches(cpu, rounds, bench.batches)))
    how = f"a first read of a page of 4 KiB, which the kernel need not clear, {_AMID}"
    section: Section = {"page_fault": bench.time("cost.page_fault", fault, how)}
    # The time minus that of the pipe calls may be lost in noise.
    if min(switch.runs) > 0:
        how = "two threads on one processor wake each other through pipes, minus the pipe calls"
        section["context_switch"] = bench.time("cost.context_switch", switch, how)
    return section, bare.median


def _zero_page_ns(work: _engine.ProgramWork | None) -> float:
    ns, _ = _engine.MappedMemory(_RUN, "small", None).read(BASE, work)
    return ns / (_RUN // BASE)


def _runs(bench: Bench) -> int:
    return _QUICK_RUNS if bench.quick else _RUNS


def zero_fill(
    bench: Bench, page_fault: float, sysfs: Path = SYSFS, runtime: Path = RUNTIME
) -> tuple[Section, Sourced | None]:
    """``[fault.SIZE]`` for each page size of this machine, and ``[cost] zeroing``.

    ``page_fault``: nanoseconds of a fault without clearing.
    """
    try:
        sizes = [BASE, *switches(sysfs)]
    except NearfarError as error:
        bench.notes.append(f"fault: only {short(BASE)} pages: {error}")
        sizes = [BASE]
    sizes = [size for size in sizes if size <= LARGE]
    runs = _runs(bench)
    room = min(bench.system.available // 8, _ROOM)
    run_bytes = max(min(_RUN, room // len(sizes) // (_TRIES * runs)) // LARGE, 1) * LARGE
    held: Held = []
    reclaims = bench.system.is_virtual and not bench.quick and _host_reclaims(bench, held, room)
    sections: Section = {}
    work = _engine.ProgramWork()
    zeroing: Sourced | None = None
    # Largest pages first, because smaller pages fragment memory.
    for page in reversed(sizes):
        bench.say(f"faults of {short(page)}")
        key = f"fault.{size_text(page)}"
        try:
            kind, setting = _mapping_for(page, sysfs, runtime)
            with setting, bench.pinned():
                first, again, backed = _times(page, kind, run_bytes, runs, work, held, reclaims)
        except NearfarError as error:
            bench.notes.append(f"{key}: left out: {error}")
            continue
        how = first_how = f"{size(run_bytes)} per run, newly mapped, {_AMID}"
        if backed is None:
            bench.notes.append(f"{key}.first: measured on memory that the host backed already")
        elif backed:
            others = f"{backed} other runs used backed memory"
            first_how = f"{how}, which the host had to allocate; {others}"
        sections[size_text(page)] = {
            "first": bench.time(f"{key}.first", first, first_how),
            "again": bench.time(f"{key}.again", again, f"{how}, after the same amount was freed"),
        }
        # In a fault on the largest page, clearing has the largest share.
        if zeroing is None and all(run > page_fault for run in again.runs):
            cleared = Samples(tuple(page / (run - page_fault) * 1e9 for run in again.runs))
            how = f"a {short(page)} fault on freed memory, minus a fault without clearing"
            zeroing = bench.rate("cost.zeroing", cleared, how)
    return dict(reversed(sections.items())), zeroing


def _host_reclaims(bench: Bench, held: Held, room: int) -> bool:
    """Whether the host reclaims freed memory. If so, ``held`` gets the free memory that the host
    backs, so that the host has to allocate what is touched next."""
    bench.say("memory that the host backs")
    time.sleep(_RECLAIM_SECONDS)
    with bench.pinned():
        if _use_up(BASE, "small", held, room):
            # The kernel has other free lists for large pages.
            _use_up(LARGE, "huge", held, room // 2)
            return True
    bench.notes.append(
        f"fault: the host backed the first {size(room)} that were touched: it does not reclaim "
        "memory, or has not yet; memory that it has to allocate may take longer than "
        "fault.SIZE.first"
    )
    return False


def _use_up(page: int, kind: str, held: Held, room: int) -> bool:
    """Touch and hold memory until the host has to allocate it; returns whether it had to."""
    times: list[float] = []
    for _ in range(0, room, _RUN):
        held.append(_engine.MappedMemory(_RUN, kind, None))
        times.append(held[-1].write(page)[0])
        # The last runs are all slow, and about equally so: the host allocated memory in each.
        last = times[-_SLOW_RUNS:]
        if min(last) > _HOST_ALLOCATES * min(times) and max(last) < _HOST_ALLOCATES * min(last):
            return True
    return False


def _mapping_for(
    page: int, sysfs: Path, runtime: Path
) -> tuple[str, AbstractContextManager[object]]:
    """The kind of mapping that gets pages of this size, and the change of settings for it.

    ``small`` and ``huge`` are advised with ``madvise``, ``unasked`` is not.
    """
    if page == BASE:
        return "small", nullcontext()
    words = acting(sysfs)
    larger = [word for size, word in words.items() if size > page]
    if words[page] in ("always", "madvise") and not set(larger) & {"always", "madvise"}:
        # The kernel uses the largest enabled size.
        return "huge", nullcontext()
    if words[page] == "always" and "always" not in larger:
        return "unasked", nullcontext()
    if not os.access(sysfs / switches(sysfs)[page], os.W_OK):
        raise NearfarError(f"{short(page)} pages are disabled; run as root")
    return "unasked", applied(page, sysfs, runtime)


def _times(
    page: int,
    kind: str,
    run_bytes: int,
    runs: int,
    work: _engine.ProgramWork,
    held: Held,
    reclaims: bool,
) -> tuple[Samples, Samples, int | None]:
    """Nanoseconds per page of first writes to new memory, and to memory that was just freed.

    The time of the program between faults is not included; that of freeing the page is. If the
    host reclaims memory, the former are only of runs in which the host had to allocate. The third
    value is the number of runs left out; None if the host had to allocate in too few.

    Raises:
        NearfarError: the kernel gave smaller pages.
    """
    # Free more than the caches hold, and allocate it again.
    memory: Held = []
    _first_writes(page, kind, run_bytes, runs, work, memory)
    free_ns = _free(memory, run_bytes // page)
    reused = _first_writes(page, kind, run_bytes, runs, work, memory)
    held += memory
    if None in reused:
        raise NearfarError(_SMALLER)
    again = Samples(tuple(ns + free_ns for ns in reused if ns is not None))
    first: list[float] = []
    allocated: list[float] = []
    while len(first) < runs or (reclaims and len(allocated) < runs and len(first) < _TRIES * runs):
        (ns,) = _first_writes(page, kind, run_bytes, 1, work, held)
        if ns is None:
            raise NearfarError(_SMALLER)
        ns += free_ns
        first.append(ns)
        if ns > _HOST_ALLOCATES * again.median:
            allocated.append(ns)
    if reclaims and len(allocated) >= min(runs, _ENOUGH):
        return Samples(tuple(allocated)), again, len(first) - len(allocated)
    return Samples(tuple(first)), again, None if reclaims else 0


def _free(memory: Held, count: int) -> float:
    """Unmap memory of ``count`` pages each: median nanoseconds per page."""
    times = []
    while memory:
        start = time.thread_time_ns()
        memory.pop()
        times.append((time.thread_time_ns() - start) / count)
    return statistics.median(times)


def _first_writes(
    page: int, kind: str, run_bytes: int, runs: int, work: _engine.ProgramWork, held: Held
) -> list[float | None]:
    """Nanoseconds per page of first writes to new memory, by run; None if pages were smaller."""
    times: list[float | None] = []
    for _ in range(runs):
        memory = _engine.MappedMemory(run_bytes, kind, None)
        held.append(memory)
        ns, _ = memory.write(page, work)
        # If a page was smaller, writes to the rest of it still fault. Up to one such fault in four
        # pages is tolerated.
        smaller = memory.write(BASE)[1]
        times.append(None if smaller * page > run_bytes // 4 else ns / (run_bytes // page))
    return times
