"""Findings of a paging result, in numbers and in sentences, for tables, plots and pages.

The input is :class:`Result`, which ``nearfar paging --format json`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NotRequired, TypedDict, cast

from nearfar import units
from nearfar.declared import paging as declared
from nearfar.memory_curve import Memory, in_order, middle
from nearfar.provenance import Run
from nearfar.schema import default

#: Bytes of the page that x86-64 and most arm64 systems use by default.
USUAL_PAGE: Final = 4096
#: The filter that passes every reference.
ALL_REFERENCES: Final[str] = default(declared.OPTIONS, "filter")
#: Columns that add up to the time of a reference, with ``--view machine``.
PARTS: Final = ("cpu_ns", "tlb_ns", "walk_ns", "cache_ns", "dram_ns", "fault_ns", "io_ns")
#: Names of the fitted quantities.
QUANTITIES: Final = {"tlb": "TLB miss rate", "fault": "fault rate"}

#: Columns that are rates, each with a chart.
Rate = Literal["fault_rate", "tlb_miss_rate"]


class LeftOut(TypedDict):
    """A page size without rows; ``least_sample`` is None if only a full run has enough pages."""

    page_bytes: int
    least_sample: float | None


class TooFewFrames(TypedDict):
    """A page size and memory size without a row."""

    page_bytes: int
    memory_bytes: int
    memory_fraction: float | None


class PagingRun(Run, total=False):
    """The record of a paging run."""

    references: int
    footprint_bytes: int
    #: Whether pages end, according to the events of the trace.
    pages_end: bool
    #: The peak resident set, if memory sizes are shares of it.
    peak_resident_bytes: int | None
    #: Page sizes of which the sample has too few pages, with the lowest rate that has enough.
    left_out: list[LeftOut]
    #: Page and memory sizes without rows, as the memory has fewer than 8 frames.
    too_few_frames: list[TooFewFrames]


class Interval(TypedDict):
    """A fitted coefficient and its confidence interval."""

    value: float | None
    low: float | None
    high: float | None


class PlainFit(TypedDict):
    """A :class:`nearfar.models.Fit` in a result."""

    quantity: str
    model: str
    formula: str
    page_unit: str
    memory_bytes: int | None
    memory_fraction: float | None
    coefficients: dict[str, Interval]
    confidence: float
    r2: float | None
    adjusted_r2: float | None
    rmse: float | None
    loo_mean_relative: float | None
    verdict: str
    reason: str
    loo_error: float | None
    #: Page size, measured rate, predicted rate (may be None).
    points: list[list[float | None]]
    #: Page size and predicted rate.
    curve: list[list[float]]


class Result(TypedDict):
    """A paging result as plain values; ``by_place``: :func:`by_place` has renamed its storages."""

    run: PagingRun
    rows: list[declared.Row]
    fits: list[PlainFit]
    by_place: NotRequired[bool]


@dataclass(frozen=True)
class Best:
    """The page size with the shortest time per reference, for one memory size and storage.

    Attributes:
        memory: the memory size.
        storage: the name of the storage.
        row: the best row; of equal times, that of the page size nearest to 4 KiB.
        usual: the row of 4 KiB pages; None if they were not studied.
    """

    memory: Memory
    storage: str
    row: declared.Row
    usual: declared.Row | None

    @property
    def page_bytes(self) -> int:
        """Bytes of the best page."""
        return self.row["page_bytes"]

    @property
    def gain(self) -> float | None:
        """The share of the time with 4 KiB pages that the best page saves, 0 to 1, if known."""
        if self.usual is None or not self.usual["total_ns"]:
            return None
        return 1.0 - self.row["total_ns"] / self.usual["total_ns"]

    @property
    def sentence(self) -> str:
        """The finding in words."""
        text = (
            f"At {self.memory.phrase} on {units.clean(self.storage)} "
            f"the best page is {units.size(self.page_bytes)}"
        )
        time = units.duration(self.row["total_ns"])
        gain = self.gain
        if gain is None:
            return f"{text}: {time} per reference (4 KiB was not among the sizes tried)."
        if self.page_bytes == USUAL_PAGE:
            return (
                f"{text}, the usual one: {time} per reference, and no other size tried is quicker."
            )
        usual = units.duration(self.usual["total_ns"]) if self.usual else ""
        saved = "less than 0.1 %" if gain < 0.0005 else units.percent(gain)
        return f"{text}: {saved} less time per reference than 4 KiB ({time} instead of {usual})."


def too_few_frames(run: PagingRun) -> list[str]:
    """A sentence on the cells that a study left out because memory has too few frames, if any."""
    cells: dict[int, list[Memory]] = {}
    # Older versions do not have this key.
    for cell in run.get("too_few_frames") or ():
        cells.setdefault(cell["page_bytes"], []).append(memory_of(cell))
    if not cells:
        return []
    # Adjacent page sizes that lack the same memory sizes form a group.
    groups: list[tuple[str, list[int]]] = []
    for page, memories in sorted(cells.items()):
        largest = in_order(memories)[-1].label
        which = largest if len(memories) == 1 else f"{largest} and less"
        if not groups or groups[-1][0] != which:
            groups.append((which, []))
        groups[-1][1].append(page)
    named = []
    for which, pages in groups:
        sizes = [units.size(page) for page in dict.fromkeys((pages[0], pages[-1]))]
        named.append(f"{' to '.join(sizes)} pages with {which}")
    return [
        f"left out, as memory holds fewer than 8 pages, which thrash in any program: "
        f"{', '.join(named)}"
    ]


def filtered(result: Mapping[str, Any]) -> bool:
    """Whether ``--filter`` removed references; of a result of any study with this option."""
    options = result["run"].get("options", {})
    return bool(options.get("filter", ALL_REFERENCES) != ALL_REFERENCES)


def rows(result: Result) -> Sequence[declared.Row]:
    """The rows of a result."""
    return result["rows"]


def machines(result: Result) -> list[str]:
    """The machines that were compared; empty if there is only one."""
    return list(result["run"].get("machines", ()))


def of_machine(result: Result, name: str) -> Result:
    """The part of a result that concerns one of the compared machines."""
    run = result["run"].copy()
    run.pop("machines", None)
    return {**result, "run": run, "rows": [r for r in rows(result) if r["machine"] == name]}


def by_place(result: Result) -> Result:
    """A result of several machines, with storages renamed to ``machine/storage``.

    If every machine has one storage, that gets the name of the machine. Tables and charts by
    storage thus show machines too. Other results, and renamed ones, are returned unchanged.
    """
    if not machines(result) or result.get("by_place"):
        return result
    places = {(row["machine"], row["storage"]) for row in rows(result)}
    single = len(places) == len(machines(result))
    named: list[declared.Row] = [
        {**row, "storage": row["machine"] if single else f"{row['machine']}/{row['storage']}"}
        for row in rows(result)
    ]
    return {**result, "rows": named, "by_place": True}


def memories(result: Result) -> list[Memory]:
    """The memory sizes, smallest first."""
    return in_order(map(memory_of, rows(result)))


def memory_of(row: Mapping[str, object]) -> Memory:
    """The memory size of a row, or of whatever has its columns."""
    size = cast("TooFewFrames", row)
    return Memory(size["memory_bytes"], size["memory_fraction"])


def storages(result: Result) -> list[str]:
    """The storages, in order of the rows."""
    return list(dict.fromkeys(row["storage"] for row in rows(result)))


def page_sizes(result: Result) -> list[int]:
    """The page sizes in bytes, smallest first."""
    return sorted({row["page_bytes"] for row in rows(result)})


def best_pages(result: Result) -> dict[tuple[Memory, str], Best]:
    """The best page for every memory size and storage."""
    groups: dict[tuple[Memory, str], list[declared.Row]] = {}
    for row in rows(result):
        groups.setdefault((memory_of(row), row["storage"]), []).append(row)
    return {
        key: Best(
            key[0],
            key[1],
            min(group, key=lambda row: (row["total_ns"], abs(row["page_bytes"] - USUAL_PAGE))),
            next((row for row in group if row["page_bytes"] == USUAL_PAGE), None),
        )
        for key, group in groups.items()
    }


def middle_memory(result: Result) -> Memory | None:
    """The memory size to show first: nearest to half the footprint, or the middle of the list."""
    return middle(memories(result))


def answered_memory(result: Result) -> Memory:
    """The memory size for which the page size is recommended; the result must have rows.

    The largest with ``--view machine``, else the middle.
    """
    known = memories(result)
    machine_view = rows(result)[0].get("cpu_ns") is not None
    return known[-1] if machine_view else middle_memory(result) or known[-1]


def spread(items: Sequence[Memory], limit: int) -> list[Memory]:
    """At most ``limit`` of ``items``, evenly spaced, including both ends."""
    if len(items) <= limit:
        return list(items)
    if limit == 1:
        return [items[len(items) // 2]]
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]


@dataclass(frozen=True)
class FitView:
    """One fit of a result, for tables and charts.

    Attributes:
        quantity: ``tlb`` or ``fault``.
        memory: the memory size; None for the TLB, or if there are no rows of it.
        formula: the model over the page size p; unit: the unit of p.
        coefficients: ``(name, value, low, high)``; unknown numbers are None.
        r2, rmse, loo_error: quality of the fit (errors in rate); None if unknown.
        verdict: ``good``, ``fair`` or ``bad``; reason: why.
        points: ``(page_bytes, measured, predicted)``; predicted may be None.
        curve: ``(page_bytes, predicted)`` of the line to draw.
    """

    quantity: str
    memory: Memory | None
    formula: str
    unit: str
    coefficients: tuple[tuple[str, float | None, float | None, float | None], ...]
    r2: float | None
    rmse: float | None
    loo_error: float | None
    verdict: str
    reason: str
    points: tuple[tuple[int, float, float | None], ...]
    curve: tuple[tuple[float, float], ...]

    @property
    def title(self) -> str:
        """The fitted quantity."""
        return QUANTITIES.get(self.quantity, units.clean(self.quantity))

    @property
    def memory_label(self) -> str:
        """The memory size as a cell of a table."""
        if self.quantity == "tlb":
            return "any"
        return self.memory.label if self.memory else "?"


def fits(result: Result) -> list[FitView]:
    """The fits of a result, in its order."""
    known: dict[tuple[int | None, float | None], Memory] = {
        (memory.bytes, memory.fraction): memory for memory in memories(result)
    }
    return [
        FitView(
            quantity=fit["quantity"],
            memory=known.get((fit["memory_bytes"], fit["memory_fraction"])),
            formula=fit["formula"],
            unit=fit["page_unit"],
            coefficients=tuple(
                (name, one["value"], one["low"], one["high"])
                for name, one in fit["coefficients"].items()
            ),
            r2=fit["r2"],
            rmse=fit["rmse"],
            loo_error=fit["loo_error"],
            verdict=fit["verdict"],
            reason=fit["reason"],
            points=tuple(
                (int(size or 0), rate or 0.0, predicted) for size, rate, predicted in fit["points"]
            ),
            curve=tuple((size, rate) for size, rate in fit["curve"]),
        )
        for fit in result.get("fits") or []
    ]


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """A coefficient with its confidence interval."""
    if value is None:
        return "unknown"
    if low is None or high is None:
        return f"{units.digits(value)} (interval unknown)"
    return f"{units.digits(value)} ({units.digits(low)} to {units.digits(high)})"


def page_unit(shown: Sequence[FitView]) -> str:
    """The unit of p in the formulas of these fits."""
    return " or ".join(sorted({fit.unit for fit in shown})) or "bytes"
