"""What the kernel takes for a fault, by the size of the page, and for a switch between threads."""

from __future__ import annotations

import os
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
_RUN: Final = 8 << 20
_RUNS, _QUICK_RUNS = 15, 3
#: Runs in a row that take twice as long as the shortest once the host has to find memory.
_FOUND: Final = 4

Section = dict[str, Any]


def cost(bench: Bench) -> tuple[Section, float]:
    """``[cost]`` of a fault without clearing and of a switch, and the first's nanoseconds."""
    bench.say("faults")
    with bench.pinned() as cpu:
        # A first read gives the page of zeros, which is there already.
        fault = Samples(tuple(_zero_pages() for _ in range(_runs(bench))))
        rounds = 200 if bench.quick else 2000
        switch = bench.repeat(lambda: fastest(_engine.measure_switches(cpu, rounds, bench.batches)))
    how = "a first read of a page of 4 KiB, which the kernel need not clear"
    section = {"page_fault": bench.time("cost.page_fault", fault, how)}
    if switch.median > 0:
        how = "two threads on a processor wake each other through pipes, less the pipes"
        section["context_switch"] = bench.time("cost.context_switch", switch, how)
    return section, fault.median


def _zero_pages() -> float:
    ns, _ = _engine.MappedMemory(_RUN, "small", None).read(BASE)
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
    room = bench.system.available // 8
    each = max(min(_RUN, room // len(sizes) // runs) // LARGE, 1) * LARGE
    # All that was touched first is held until the end: what is freed would be touched again.
    held: list[Any] = []
    if bench.system.is_virtual and not bench.quick:
        _use_up(bench, held, room)
    found: Section = {}
    zeroing: Sourced | None = None
    for page in sizes:
        bench.say(f"faults of {short(page)}")
        try:
            pages, switched = _ways_to(page, sysfs, runtime)
            with switched, bench.pinned():
                first = _touch(page, pages, each, runs, held)
                # Given back, and taken again.
                del held[-runs:]
                again = _touch(page, pages, each, runs, held)
        except NearfarError as error:
            bench.notes.append(f"fault.{size_text(page)}: left out: {error}")
            continue
        if first is None or again is None:
            bench.notes.append(
                f"fault.{size_text(page)}: left out: the kernel gave smaller pages; "
                "free memory may be in pieces"
            )
            continue
        key = f"fault.{size_text(page)}"
        how = f"{size(each)} a run, newly mapped"
        found[size_text(page)] = {
            "first": bench.time(f"{key}.first", first, how),
            "again": bench.time(f"{key}.again", again, f"{how} after as much was freed"),
        }
        # The largest page has the most clearing in it.
        cleared = Samples(tuple(page / (run - page_fault) * 1e9 for run in again.runs))
        if all(run > page_fault for run in again.runs):
            how = f"a fault of {short(page)} on memory freed before, less a fault without clearing"
            zeroing = bench.rate("cost.zeroing", cleared, how)
    return found, zeroing


def _use_up(bench: Bench, held: list[Any], room: int) -> None:
    """Hold free memory that the host still backs, so that what is touched next it has to find."""
    bench.say("memory that the host still backs")
    times: list[float] = []
    with bench.pinned():
        while len(held) * _RUN < room:
            held.append(_engine.MappedMemory(_RUN, "small", None))
            times.append(held[-1].write(BASE)[0])
            if min(times[-_FOUND:]) > 2 * min(times) and len(times) > _FOUND:
                return
    bench.notes.append(
        f"fault.*.first: the host backed all of {size(room)} that was touched before; memory that "
        "it has to find may take longer"
    )


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


def _touch(page: int, pages: str, each: int, runs: int, held: list[Any]) -> Samples | None:
    """Nanoseconds a page of first writes to new memory; None if the pages were smaller ones."""
    times = []
    smaller = 0
    for _ in range(runs):
        memory = _engine.MappedMemory(each, pages, None)
        held.append(memory)
        ns, _ = memory.write(page)
        times.append(ns / (each // page))
        # Where the page was smaller there are places that still fault.
        smaller += memory.write(BASE)[1]
    return None if smaller * page > each * runs // 20 else Samples(tuple(times))
