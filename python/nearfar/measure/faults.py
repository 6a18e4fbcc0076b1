"""What the kernel takes for a fault, by the size of the page, and for a switch between threads."""

from __future__ import annotations

import os
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Final

from nearfar import _engine
from nearfar.apply.setting import BASE, RUNTIME, SYSFS, acting, applied, short, switches
from nearfar.errors import NearfarError
from nearfar.measure.bench import LARGE, Bench, Sourced
from nearfar.measure.samples import Samples, fastest, size_text
from nearfar.units import size

#: Bytes that a run touches: short, so that most runs are not disturbed.
_RUN: Final = 4 << 20
_RUNS, _QUICK_RUNS = 15, 3
#: Bytes that are touched in search of memory that a host has to find, at most.
_ROOM: Final = 4 << 30
#: How much longer a fault takes where a host has to find the memory, at least.
_FOUND: Final = 2
#: Seconds in which a host takes back what was freed, if it does (Linux reports it after two).
_TAKEN_BACK: Final = 3
#: How faults are timed: one that follows another at once finds caches and branch predictors full of
#: the kernel, and takes half the time of one that a program meets.
_AMID: Final = "amid the loads and calls of a program"
#: Runs for each that is wanted, in search of memory that a host has to find.
_TRIES: Final = 4

Section = dict[str, Any]


def cost(bench: Bench) -> tuple[Section, float]:
    """``[cost]`` of a fault without clearing and of a switch, and nanoseconds of such a fault that
    follows another at once."""
    bench.say("faults")
    with bench.pinned() as cpu:
        # A first read gives the page of zeros, which is there already.
        bare = Samples(tuple(_zero_pages(None) for _ in range(_runs(bench))))
        work = _engine.ProgramWork()
        fault = Samples(tuple(_zero_pages(work) for _ in range(_runs(bench))))
        rounds = 200 if bench.quick else 2000
        switch = bench.repeat(lambda: fastest(_engine.measure_switches(cpu, rounds, bench.batches)))
    how = f"a first read of a page of 4 KiB, which the kernel need not clear, {_AMID}"
    section = {"page_fault": bench.time("cost.page_fault", fault, how)}
    # A difference may be lost in noise.
    if min(switch.runs) > 0:
        how = "two threads on a processor wake each other through pipes, less the pipes"
        section["context_switch"] = bench.time("cost.context_switch", switch, how)
    return section, bare.median


def _zero_pages(work: _engine.ProgramWork | None) -> float:
    ns, _ = _engine.MappedMemory(_RUN, "small", None).read(BASE, work)
    return ns / (_RUN // BASE)


def _runs(bench: Bench) -> int:
    return _QUICK_RUNS if bench.quick else _RUNS


def zero_fill(
    bench: Bench, page_fault: float, sysfs: Path = SYSFS, runtime: Path = RUNTIME
) -> tuple[Section, Sourced | None]:
    """``[fault.SIZE]`` for each page size that can be had here, and ``[cost] zeroing``."""
    try:
        sizes = [BASE, *switches(sysfs)]
    except NearfarError as error:
        bench.notes.append(f"fault: only pages of {short(BASE)}: {error}")
        sizes = [BASE]
    sizes = [size for size in sizes if size <= LARGE]
    runs = _runs(bench)
    room = min(bench.system.available // 8, _ROOM)
    each = max(min(_RUN, room // len(sizes) // (_TRIES * runs)) // LARGE, 1) * LARGE
    # All that was touched is held until the end: what is freed would be touched again.
    held: list[Any] = []
    takes_back = bench.system.is_virtual and not bench.quick and _takes_back(bench, held, room)
    found: Section = {}
    work = _engine.ProgramWork()
    zeroing: Sourced | None = None
    # The largest first: smaller pages would break up memory in which there is room for them.
    for page in reversed(sizes):
        bench.say(f"faults of {short(page)}")
        key = f"fault.{size_text(page)}"
        try:
            pages, switched = _ways_to(page, sysfs, runtime)
            with switched, bench.pinned():
                times = _times(page, pages, each, runs, work, held, takes_back)
        except NearfarError as error:
            bench.notes.append(f"{key}: left out: {error}")
            continue
        if times is None:
            bench.notes.append(
                f"{key}: left out: the kernel gave smaller pages; free memory may be in pieces"
            )
            continue
        first, again, missed = times
        how = f"{size(each)} a run, newly mapped, {_AMID}"
        newly = how
        if missed is None:
            bench.notes.append(f"{key}.first: of memory that the host backed already")
        elif missed:
            newly = (
                f"{how}, that the host had to find; {missed} more runs had memory that it backed"
            )
        found[size_text(page)] = {
            "first": bench.time(f"{key}.first", first, newly),
            "again": bench.time(f"{key}.again", again, f"{how} after as much was freed"),
        }
        # The largest page has the most clearing in it.
        if zeroing is None and all(run > page_fault for run in again.runs):
            cleared = Samples(tuple(page / (run - page_fault) * 1e9 for run in again.runs))
            how = f"a fault of {short(page)} on memory freed before, less a fault without clearing"
            zeroing = bench.rate("cost.zeroing", cleared, how)
    return dict(reversed(found.items())), zeroing


def _takes_back(bench: Bench, held: list[Any], room: int) -> bool:
    """Whether the host takes back what was freed: then free memory that it backs is held until the
    end, so that what is touched next it has to find."""
    bench.say("memory that the host backs")
    time.sleep(_TAKEN_BACK)
    with bench.pinned():
        if _use_up(BASE, "small", held, room):
            # Whole large pages come from another list.
            _use_up(LARGE, "huge", held, room // 2)
            return True
    bench.notes.append(
        f"fault: the host backed all of {size(room)} that was touched first: it may not take "
        "memory back, or has not yet; what it has to find may take longer than fault.SIZE.first"
    )
    return False


def _use_up(page: int, pages: str, held: list[Any], room: int) -> bool:
    """Touch and hold memory until it takes long, and takes as long again."""
    times: list[float] = []
    for _ in range(0, room, _RUN):
        held.append(_engine.MappedMemory(_RUN, pages, None))
        times.append(held[-1].write(page)[0])
        last = times[-2 * _TRIES :]
        if min(last) > _FOUND * min(times) and max(last) < _FOUND * min(last):
            return True
    return False


def _ways_to(page: int, sysfs: Path, runtime: Path) -> tuple[str, AbstractContextManager[Any]]:
    """Which pages to ask for, and the change of switches that it takes; none where it can be."""
    if page == BASE:
        return "small", nullcontext()
    words = acting(sysfs)
    larger = [word for size, word in words.items() if size > page]
    if words[page] in ("always", "madvise") and not set(larger) & {"always", "madvise"}:
        # The kernel gives the largest that is allowed.
        return "huge", nullcontext()
    if words[page] == "always" and "always" not in larger:
        return "unasked", nullcontext()
    if not os.access(sysfs / switches(sysfs)[page], os.W_OK):
        raise NearfarError(f"{short(page)} is switched off; run as root")
    return "unasked", applied(page, sysfs, runtime)


def _times(
    page: int,
    pages: str,
    each: int,
    runs: int,
    work: _engine.ProgramWork,
    held: list[Any],
    takes_back: bool,
) -> tuple[Samples, Samples, int | None] | None:
    """Nanoseconds a page of first writes to new memory, and to memory that was freed just before,
    each amid a program's work and with giving the page back.

    Where a host takes memory back, the first are those for which it had to find some, if there are
    any; how many others there were comes third, None if all. None if the pages were smaller ones.
    """
    # More than a cache holds is given back, and taken again.
    taken: list[Any] = []
    _several(page, pages, each, runs, work, taken)
    back = _given_back(taken, each // page)
    usual = _several(page, pages, each, runs, work, taken)
    held += taken
    if None in usual:
        return None
    again = Samples(tuple(ns + back for ns in usual if ns is not None))
    first: list[float] = []
    found: list[float] = []
    while len(first) < runs or (takes_back and len(found) < runs and len(first) < _TRIES * runs):
        (ns,) = _several(page, pages, each, 1, work, held)
        if ns is None:
            return None
        ns += back
        first.append(ns)
        if ns > _FOUND * again.median:
            found.append(ns)
    if takes_back and len(found) >= min(runs, _TRIES):
        return Samples(tuple(found)), again, len(first) - len(found)
    return Samples(tuple(first)), again, None if takes_back else 0


def _given_back(taken: list[Any], count: int) -> float:
    """Give back memory of ``count`` pages each: nanoseconds a page, the median."""
    times = []
    while taken:
        began = time.thread_time_ns()
        taken.pop()
        times.append((time.thread_time_ns() - began) / count)
    return statistics.median(times)


def _several(
    page: int, pages: str, each: int, runs: int, work: _engine.ProgramWork, held: list[Any]
) -> list[float | None]:
    """Nanoseconds a page of first writes to new memory, by run; None where pages were smaller."""
    times: list[float | None] = []
    for _ in range(runs):
        memory = _engine.MappedMemory(each, pages, None)
        held.append(memory)
        ns, _ = memory.write(page, work)
        # Where a page was smaller there are places that still fault.
        smaller = memory.write(BASE)[1]
        times.append(None if smaller * page > each // 4 else ns / (each // page))
    return times
