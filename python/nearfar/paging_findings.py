"""Findings of a paging result, in numbers and in sentences, for tables, plots and pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypedDict, get_args

from nearfar import units
from nearfar.declared import paging as declared
from nearfar.memory_curve import Memory, in_order, middle
from nearfar.page_choice import USUAL_PAGE as USUAL_PAGE
from nearfar.page_choice import PageChoice, choose, counted_ns
from nearfar.paging import (
    ALL_REFERENCES,
    Interval,
    PagingResult,
    PagingRun,
    PlainFit,
    counts_whole,
)
from nearfar.provenance import Run

#: Names of the fitted quantities.
QUANTITIES: Final = {"tlb": "TLB miss rate", "fault": "fault rate"}

#: Columns that add up to the time of a reference, with ``--view machine``.
Part = Literal[
    "cpu_ns", "tlb_ns", "walk_ns", "cache_ns", "dram_ns", "fault_ns", "io_ns", "start_ns"
]
PARTS: Final[tuple[Part, ...]] = get_args(Part)

#: Columns that are rates, each with a chart.
Rate = Literal["fault_rate", "tlb_miss_rate"]


@dataclass(frozen=True)
class Best(PageChoice):
    """The choice of the page size for one memory size and storage.

    Attributes:
        memory: the memory size.
        storage: the name of the storage.
        rows: the rows of all page sizes.
    """

    memory: Memory
    storage: str
    rows: Sequence[declared.Row]

    @property
    def sentence(self) -> str:
        """The finding in words."""
        text = (
            f"At {self.memory.phrase} on {units.clean(self.storage)} "
            f"the best page is {units.size(self.page_bytes)}"
        )
        time = units.duration(counted_ns(self.row, self.whole))
        gain = self.gain
        if gain is None:
            return f"{text}: {time} per reference (4 KiB was not among the sizes tried)."
        if self.page_bytes == USUAL_PAGE:
            if self.refusal is not None:
                return f"{text}, the usual one: {time} per reference; {self.refusal}."
            if len(self.rows) == 1:
                return f"{text}, the only size simulated: {time} per reference."
            within = "" if self.fastest is self.row else " by more than the error"
            return (
                f"{text}, the usual one: {time} per reference{self.when}, and no other size tried "
                f"is quicker{within}."
            )
        usual = units.duration(counted_ns(self.usual, self.whole)) if self.usual else ""
        saved = "less than 0.1 %" if gain < 0.0005 else units.percent(gain)
        return (
            f"{text}: {saved} less time per reference{self.when} than 4 KiB ({time} instead of "
            f"{usual})."
        )


def filtered(run: Run) -> bool:
    """Whether ``--filter`` removed references."""
    return bool(run.get("options", {}).get("filter", ALL_REFERENCES) != ALL_REFERENCES)


def machines(result: PagingResult) -> list[str]:
    """The machines that were compared; empty if there is only one."""
    return list(result.run.get("machines", ()))


def of_machine(result: PagingResult, name: str) -> PagingResult:
    """The part of a result that concerns one of the compared machines."""
    run: PagingRun = {**result.run}
    del run["machines"]
    return replace(result, run=run, rows=[r for r in result.rows if r["machine"] == name])


def of_first_machine(result: PagingResult) -> str:
    """`` (MACHINE)`` if TLB miss rates and fits are the first of several machines'; else empty."""
    hosts = machines(result)
    by_machine = result.run.get("options", {}).get("view") == "machine"
    return f" ({hosts[0]})" if hosts and by_machine else ""


def with_machine_names(result: PagingResult) -> PagingResult:
    """A result of several machines, with storages renamed to ``machine/storage``; call it once.

    If every machine has one storage, that gets the name of the machine. Tables and charts by
    storage thus show machines too. A result of one machine is returned unchanged.
    """
    hosts = machines(result)
    if not hosts:
        return result
    single = len({(row["machine"], row["storage"]) for row in result.rows}) == len(hosts)
    rows: list[declared.Row] = [
        {**row, "storage": row["machine"] if single else f"{row['machine']}/{row['storage']}"}
        for row in result.rows
    ]
    return replace(result, rows=rows)


def memories(result: PagingResult) -> list[Memory]:
    """The memory sizes, smallest first."""
    return in_order(map(memory_of, result.rows))


class OfMemory(TypedDict):
    """The columns of the memory size, in a row or in a run of ``explain``."""

    memory_bytes: int
    memory_fraction: float | None


def memory_of(row: OfMemory) -> Memory:
    """The memory size of a row."""
    return Memory(row["memory_bytes"], row["memory_fraction"])


def storages(result: PagingResult) -> list[str]:
    """The storages, in order of the rows."""
    return list(dict.fromkeys(row["storage"] for row in result.rows))


def page_sizes(result: PagingResult) -> list[int]:
    """The page sizes in bytes, smallest first."""
    return sorted({row["page_bytes"] for row in result.rows})


def best_pages(result: PagingResult) -> dict[tuple[Memory, str], Best]:
    """The best page for every memory size and storage."""
    groups: dict[tuple[Memory, str], list[declared.Row]] = {}
    for row in result.rows:
        groups.setdefault((memory_of(row), row["storage"]), []).append(row)
    whole = counts_whole(result.run)  # time before memory is full counts too
    return {
        (memory, storage): Best(
            **vars(choose(rows, whole=whole)), memory=memory, storage=storage, rows=rows
        )
        for (memory, storage), rows in groups.items()
    }


def middle_memory(result: PagingResult) -> Memory | None:
    """The memory size to show first: nearest to 50 %, or the middle of the list."""
    return middle(memories(result))


def answered_memory(result: PagingResult) -> Memory:
    """The memory size for which the page size is recommended; the result must have rows.

    The largest with ``--view machine``, else the middle.
    """
    known = memories(result)
    machine_view = result.rows[0].get("cpu_ns") is not None
    return known[-1] if machine_view else middle_memory(result) or known[-1]


def spread(items: Sequence[Memory], limit: int) -> list[Memory]:
    """At most ``limit`` items, evenly spaced, with both ends; the middle one for a limit of 1."""
    if len(items) <= limit:
        return list(items)
    if limit == 1:
        return [items[len(items) // 2]]
    return [items[round(i * (len(items) - 1) / (limit - 1))] for i in range(limit)]


def memory_of_fit(fit: PlainFit) -> Memory | None:
    """The memory size of a fit of the fault rate; None for the TLB miss rate."""
    size = fit["memory_bytes"]
    return None if size is None else Memory(size, fit["memory_fraction"])


def interval(coefficient: Interval) -> str:
    """A coefficient with its confidence interval."""
    value, low, high = coefficient["value"], coefficient["low"], coefficient["high"]
    if value is None:
        return "unknown"
    if low is None or high is None:
        return f"{units.digits(value)} (interval unknown)"
    return f"{units.digits(value)} ({units.digits(low)} to {units.digits(high)})"


def page_unit(fits: Sequence[PlainFit]) -> str:
    """The unit of p, the page size, in the formulas of these fits."""
    return " or ".join(sorted({fit["page_unit"] for fit in fits})) or "bytes"
