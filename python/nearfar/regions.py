"""Regions: what each costs at each page size, and which size suits it.

A page size that is switched on for a whole program gives every region larger pages, those too that
gain nothing by it and only take more memory. ``madvise`` and ``prctl`` take a region each.

Times are those of ``--view machine``: each page size is run with the trace once more, and what
walks, faults and the storage cost is counted in the region it happened in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from nearfar import _engine
from nearfar import paging_findings as findings
from nearfar.errors import NearfarError
from nearfar.machine import Machine
from nearfar.schema import Column, Rows

Row = Mapping[str, Any]

#: Options of a paging run that a second run of its trace takes.
_KEPT: Final = ("tlb", "replacement", "clock_insert", "kinds", "lifetimes", "filter",
                "page_cache", "swappiness", "statistics_every", "nested")  # fmt: skip
#: What of the whole time a region must save before a larger page is advised for it.
_WORTH: Final = 0.001

#: A region at a page size.
SIZES: Final = Rows(
    columns=(
        Column("name", "string", False, "", "The region.", "region"),
        Column("page_bytes", "int64", False, "bytes", "Page size that is switched on for it."),
        Column("ns", "double", False, "ns", "What its walks, faults and storage add to the mean "
               "time of a reference.", "time"),
        Column("saved_ns", "double", False, "ns", "How much less than with 4 KiB pages.", "saves"),
        Column("saved_share", "double", False, "", "Its part of the whole time with 4 KiB pages.",
               "gain"),
        Column("resident_bytes", "int64", False, "bytes", "Most private memory of it at once."),
        Column("added_bytes", "int64", False, "bytes", "How much more than with 4 KiB pages.",
               "adds"),
        Column("advised", "bool", False, "", "The size that suits it: of those whose pages fit "
               "it the one that saves most, and at least 0.1 % of the whole time; else 4 KiB."),
    ),
    keys=("name", "page_bytes"),
    metrics={"ns": "less", "resident_bytes": "less"},
)  # fmt: skip


def options_of(kept: Mapping[str, Any], row: Row, page_bytes: int) -> dict[str, Any]:
    """The engine's options that run the memory of ``row`` once more, of a run's options."""
    asked = {name: kept[name] for name in _KEPT if name in kept}
    # In runs of older versions pages never end.
    asked.setdefault("lifetimes", "off")
    asked["page_sizes"] = [page_bytes]
    fraction = row["memory_fraction"]
    size = str(row["memory_bytes"]) if fraction is None else f"{fraction * 100:.15g}%"
    asked["memory"] = size
    return asked


def count(
    trace: Path,
    machine: Machine,
    kept: Mapping[str, Any],
    row: Row,
    smallest: int,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """What the references of a trace meet on the processor of a machine, place by place.

    Args:
        trace: its folder.
        machine: one with a processor.
        kept: options of the run that ``row`` is of.
        row: a row of a run with ``--view machine``.
        smallest: the smallest page size of that run: memory is short in such pages.
        progress: called now and then with the records done.

    Raises:
        NearfarError: the counts are not those of the row.
    """
    asked = {**options_of(kept, row, smallest), "view": "machine"}
    text = _engine.paging_explain(
        trace, options=asked, progress=progress, on=(machine, row["page_bytes"])
    )
    found: dict[str, Any] = json.loads(text)
    for name in ("tlb_misses", "tlb_second_hits"):
        if found["total"][name] != row[name] and kept.get("sample") is None:
            raise NearfarError(
                f"{trace}: the run has {row[name]:,} {name.replace('_', ' ')}, its trace gives "
                f"{found['total'][name]:,}; run the study again with this version"
            )
    warm = found["lifetimes"] and kept.get("page_cache") == "warm"
    places = (found["total"], *found["regions"], *found["ranges"], *found["sites"])
    for place in places:
        reads = place["faults"] - place["first_touches"] + (0 if warm else place["file_reads"])
        place["swap_ins"] = reads
        place["first_touches"] = place["given"]
        place["faults"] = place["given"] + reads
        place["mapped"] = place["zero_fills"] = place["file_reads"] = place["file_rereads"] = 0
    total = dict(found["total"])
    for place in places:
        place["ns"] = _ns(place, total, row)
    return found


def _ns(place: Row, total: Row, row: Row) -> float:
    """Nanoseconds per reference of the program that a place costs."""

    def part(name: str, whole: float) -> float:
        return whole * place[name] / total[name] if total[name] else 0.0

    given = total["given_ps"] / 1e3 / row["references"]
    return (
        part("tlb_ps", row["tlb_ns"])
        + part("walk_ps", row["walk_ns"])
        + part("given_ps", given)
        + part("swap_ins", max(0.0, row["fault_ns"] - given) + row["io_ns"])
    )


def by_region(
    trace: Path,
    machine: Machine,
    kept: Mapping[str, Any],
    rows: Sequence[Row],
    progress: Callable[[int], None] | None = None,
    counted: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Each region at each page size, as :data:`SIZES` has it; those first that gain most.

    Args:
        trace: its folder.
        machine: one with a processor.
        kept: options of the run.
        rows: a row for each page size, 4 KiB among them, at one memory size and one storage, of a
            run with ``--view machine``.
        progress: called now and then with the records done, of all page sizes.
        counted: what :func:`count` gave for a page size already.

    Raises:
        NearfarError: 4 KiB is not among the rows, or the counts are not those of the rows.
    """
    usual = next((row for row in rows if row["page_bytes"] == findings.USUAL_PAGE), None)
    if usual is None:
        raise NearfarError(
            f"{trace}: by region, larger pages are compared with those of 4 KiB, which the run "
            "does not have; add 4K to its --page-sizes"
        )
    smallest = min(row["page_bytes"] for row in rows)
    at: dict[str, dict[int, tuple[float, int]]] = {}
    done = 0
    for row in sorted(rows, key=lambda row: row["page_bytes"]):
        before = done

        def on_progress(records: int, before: int = before) -> None:
            nonlocal done
            done = before + records
            if progress is not None:
                progress(done)

        known = counted.get(row["page_bytes"])
        found = known or count(trace, machine, kept, row, smallest, on_progress)
        for region in found["regions"]:
            sizes = at.setdefault(region["name"], {})
            sizes[row["page_bytes"]] = (region["ns"], region["resident_bytes"])
    made = [one for name, sizes in at.items() for one in _sized(name, sizes, usual["total_ns"])]
    best = {one["name"]: one["saved_ns"] for one in made if one["advised"]}
    made.sort(key=lambda one: (-best[one["name"]], one["name"], one["page_bytes"]))
    return made


def _sized(
    name: str, sizes: Mapping[int, tuple[float, int]], whole_ns: float
) -> list[dict[str, Any]]:
    ns_before, bytes_before = sizes[findings.USUAL_PAGE]
    # One that holds less with larger pages lies in a neighbour's: that says nothing of its own.
    own = [
        size
        for size, (_, resident) in sizes.items()
        if size == findings.USUAL_PAGE or resident >= max(size, bytes_before)
    ]
    best = min(own, key=lambda size: (sizes[size][0], size))
    if ns_before - sizes[best][0] < _WORTH * whole_ns:
        best = findings.USUAL_PAGE
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
