"""The cost of each region at each page size, and the page size that suits the region.

A page size that is set for a whole program also gives larger pages to regions that gain nothing and
only take more memory. ``madvise`` asks for larger pages in one region; ``prctl`` (Linux 6.18)
limits them to regions with that advice.

Times are those of ``--view machine``: the trace is simulated again at each page size, and the cost
of walks, faults and storage is counted in the region where it occurs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypedDict

from nearfar import _engine
from nearfar.columns import byte_size, flag, number, text
from nearfar.declared import explain as declared
from nearfar.declared import paging as paging_declared
from nearfar.errors import NearfarError
from nearfar.machine import Machine
from nearfar.page_choice import USUAL_PAGE, usual_row
from nearfar.schema import Rows
from nearfar.symbols import Costs, Site

#: Options of a paging run that a second simulation of its trace takes.
_OPTIONS: Final = ("tlb", "replacement", "kinds", "lifetimes", "filter",
                   "page_cache", "swappiness", "statistics_every", "nested")  # fmt: skip
#: The minimum share of the whole time that a region must save to get a larger page.
_WORTH: Final = 0.001
#: Counts of the second simulation that must equal those of the run's row.
_CHECKED: Final[tuple[Literal["tlb_misses", "tlb_second_hits"], ...]] = (
    "tlb_misses",
    "tlb_second_hits",
)

#: A region at a page size.
SIZES: Final = Rows(
    columns=(
        text("name", "Name of the memory region.", title="region"),
        byte_size("page_bytes", "Page size set for the region."),
        number(
            "ns",
            "Time that the region's page walks, faults and storage add to the mean time of a "
            "reference.",
            "ns",
            title="time",
        ),
        number(
            "saved_ns",
            "Time that this page size saves in the region, compared with 4 KiB pages.",
            "ns",
            title="saves",
        ),
        number(
            "saved_share", "`saved_ns` as a share of the whole time with 4 KiB pages.", title="gain"
        ),
        byte_size("resident_bytes", "Peak private memory of the region."),
        byte_size("added_bytes", "`resident_bytes` minus that with 4 KiB pages.", title="adds"),
        flag(
            "advised",
            "Whether this size is advised: of the sizes that fit in the region, the one that "
            "saves most, if at least 0.1 % of the whole time; else 4 KiB.",
        ),
    ),
    keys=("name", "page_bytes"),
    metrics={"ns": "less", "resident_bytes": "less"},
)


class Counts(Costs):
    """Counts as the engine returns them (``crates/study/src/paging/explain.rs``), and their cost.

    ``minor_faults``: faults that need no device. The others: picoseconds of these faults, of page
    walks and of the second TLB level. All four are 0 unless a processor is simulated.
    """

    minor_faults: int
    minor_fault_ps: int
    walk_ps: int
    tlb_ps: int


class Place(Counts):
    """A region or a range of addresses."""

    name: str
    addr_low: int
    addr_high: int
    resident_bytes: int


class SiteCounts(Counts, Site):
    """A block of instructions."""


class Explained(TypedDict):
    """The result of a second simulation of a run's trace."""

    lifetimes: bool
    total: Counts
    #: The part of ``total`` that references of the kernel cause.
    kernel: Counts
    kernel_instructions: int
    regions: list[Place]
    ranges: list[Place]
    sites: list[SiteCounts]


def options_of(
    run_options: Mapping[str, object], row: paging_declared.Row, page_bytes: int
) -> dict[str, object]:
    """The engine's options to simulate the memory size of ``row`` again at one page size."""
    options = {name: run_options[name] for name in _OPTIONS if name in run_options}
    # Runs of older versions have no lifetimes: their pages are never freed.
    options.setdefault("lifetimes", "off")
    options["page_sizes"] = [page_bytes]
    options["memory"] = str(row["memory_bytes"])
    return options


def all_counts(found: Explained) -> list[Counts]:
    """All counts of a result: total, kernel, regions, ranges and sites."""
    return [found["total"], found["kernel"], *found["regions"], *found["ranges"], *found["sites"]]


def count(
    trace: Path,
    machine: Machine,
    run_options: Mapping[str, object],
    rows: Sequence[paging_declared.Row],
    smallest: int,
    progress: Callable[[int], None] | None = None,
) -> list[Explained]:
    """Count the events of a trace's references on the processor of a machine.

    A result has the counts of all references, of the kernel's, and of each region, range and site.

    Args:
        trace: its folder.
        machine: one with a processor.
        run_options: options of the run of ``rows``.
        rows: rows of a run with ``--view machine``, at one memory size and one storage; each gives
            a result.
        smallest: the smallest page size of that run, which is the unit of its memory.
        progress: called now and then with the records done.

    Raises:
        NearfarError: the counts are not those of the rows.
    """
    options = {**options_of(run_options, rows[0], smallest), "view": "machine"}
    sizes = [row["page_bytes"] for row in rows]
    text = _engine.paging_explain(trace, options=options, progress=progress, on=(machine, sizes))
    all_found: list[Explained] = json.loads(text)
    for row, found in zip(rows, all_found, strict=True):
        total = found["total"]
        for name in _CHECKED:
            if total[name] != row[name]:
                raise NearfarError(
                    f"{trace}: the run has {row[name]:,} {name.replace('_', ' ')}, its trace has "
                    f"{total[name]:,}; run the study again with this version"
                )
        warm = found["lifetimes"] and run_options.get("page_cache") == "warm"
        for place in all_counts(found):
            # Faults that read from a device count as swap-ins (first touches of files too, unless
            # the page cache is warm), the others as first touches.
            reads = place["faults"] - place["first_touches"] + (0 if warm else place["file_reads"])
            place["swap_ins"] = reads
            place["first_touches"] = place["minor_faults"]
            place["faults"] = place["minor_faults"] + reads
            # These columns are 0 with `--view machine`.
            place["mapped"] = place["zero_fills"] = place["file_reads"] = place["file_rereads"] = 0
        whole = total.copy()
        for place in all_counts(found):
            place["ns"] = _ns(place, whole, row)
    return all_found


def _ns(place: Counts, total: Counts, row: paging_declared.Row) -> float:
    """Part of the row's time that ``place`` costs, in ns per reference of the program."""

    def part(count: int, whole: int, ns: float) -> float:
        return ns * count / whole if whole else 0.0

    minor_fault_ns = total["minor_fault_ps"] / 1e3 / row["references"]
    faults_ns = (row["fault_ns"] or 0.0) + (row["io_ns"] or 0.0) + (row.get("start_ns") or 0.0)
    # Rounding may make it negative if no fault needs a device.
    device_ns = max(0.0, faults_ns - minor_fault_ns)
    return (
        part(place["tlb_ps"], total["tlb_ps"], row["tlb_ns"] or 0.0)
        + part(place["walk_ps"], total["walk_ps"], row["walk_ns"] or 0.0)
        + part(place["minor_fault_ps"], total["minor_fault_ps"], minor_fault_ns)
        + part(place["swap_ins"], total["swap_ins"], device_ns)
    )


def by_region(
    trace: Path,
    machine: Machine,
    run_options: Mapping[str, object],
    rows: Sequence[paging_declared.Row],
    progress: Callable[[int], None] | None = None,
    counted: Sequence[Explained] | None = None,
) -> list[declared.SizesRow]:
    """Each region at each page size, as in :data:`SIZES`; largest gain first.

    Args:
        trace: its folder.
        machine: one with a processor.
        run_options: options of the run.
        rows: a row for each page size, including 4 KiB, at one memory size and one storage, of a
            run with ``--view machine``.
        progress: called now and then with the records done.
        counted: the results of :func:`count` for these rows, if known.

    Raises:
        NearfarError: 4 KiB is not among the rows, or the counts are not those of the rows.
    """
    usual = usual_row(rows)
    if usual is None:
        raise NearfarError(
            f"{trace}: by region, larger pages are compared with those of 4 KiB, which the run "
            "does not have; add 4K to its --page-sizes"
        )
    smallest = min(row["page_bytes"] for row in rows)
    if counted is None:
        counted = count(trace, machine, run_options, rows, smallest, progress)
    by_name: dict[str, dict[int, tuple[float, int]]] = {}
    for row, explained in zip(rows, counted, strict=True):
        for region in explained["regions"]:
            sizes = by_name.setdefault(region["name"], {})
            sizes[row["page_bytes"]] = (region["ns"], region["resident_bytes"])
    whole_ns = usual["total_ns"]
    sized = [row for name, sizes in by_name.items() for row in _sized(name, sizes, whole_ns)]
    saved = {row["name"]: row["saved_ns"] for row in sized if row["advised"]}
    return sorted(sized, key=lambda row: (-saved[row["name"]], row["name"], row["page_bytes"]))


def _sized(
    name: str, sizes: Mapping[int, tuple[float, int]], whole_ns: float
) -> list[declared.SizesRow]:
    ns_before, bytes_before = sizes[USUAL_PAGE]
    # A region that is smaller than a page, or has less memory with larger pages, shares pages with
    # a neighbour, so its times do not count.
    candidates = [
        size
        for size, (_, resident) in sizes.items()
        if size == USUAL_PAGE or resident >= max(size, bytes_before)
    ]
    best = min(candidates, key=lambda size: (sizes[size][0], size))
    if ns_before - sizes[best][0] < _WORTH * whole_ns:
        best = USUAL_PAGE
    return [
        {
            "name": name,
            "page_bytes": size,
            "ns": ns,
            "saved_ns": ns_before - ns,
            "saved_share": (ns_before - ns) / whole_ns,
            "resident_bytes": resident,
            "added_bytes": resident - bytes_before,
            "advised": size == best,
        }
        for size, (ns, resident) in sizes.items()
    ]
