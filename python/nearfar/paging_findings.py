"""What a paging result says, in numbers and in sentences: used by tables, plots and pages alike.

The input is the dict that ``nearfar paging --format json`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nearfar import units
from nearfar.declared import paging as declared
from nearfar.memory_curve import Memory, in_order, middle
from nearfar.schema import default

USUAL_PAGE: Final = 4096
"""Bytes of the page that x86-64 and most arm64 systems use by default."""

ALL_REFERENCES: Final[str] = default(declared.OPTIONS, "filter")
"""The filter that leaves nothing out."""

PARTS: Final = ("cpu_ns", "tlb_ns", "walk_ns", "cache_ns", "dram_ns", "fault_ns", "io_ns")
"""Columns that make up the time of a reference, with ``--view machine``."""

Result = Mapping[str, Any]

#: Columns that are rates, each with a chart.
Rate = Literal["fault_rate", "tlb_miss_rate"]


@dataclass(frozen=True)
class Best:
    """The page size with the least time per reference, for one memory size and storage.

    Attributes:
        memory: the memory size.
        storage: the storage's name.
        row: the winning row; of equal times, the page size nearest to the usual one wins.
        usual: the row of the 4 KiB page, or None where it was not among those tried.
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
        """Share of the 4 KiB page's time that the best page saves, 0..1; None if unknown."""
        if self.usual is None or not self.usual["total_ns"]:
            return None
        return 1.0 - self.row["total_ns"] / self.usual["total_ns"]

    @property
    def sentence(self) -> str:
        """The finding in plain words."""
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


def too_few_frames(run: Mapping[str, Any]) -> list[str]:
    """Which cells a study left out, as their memory has too few frames: a sentence, or none."""
    # Runs of older versions have rows of these.
    listed = run.get("too_few_frames") or ()
    cells: dict[int, list[Memory]] = {}
    for one in listed:
        memory = Memory(one["memory_bytes"], one["memory_fraction"])
        cells.setdefault(one["page_bytes"], []).append(memory)
    if not cells:
        return []
    # Page sizes in a row that miss the same memory sizes are named together.
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


def filtered(result: Result) -> bool:
    """Whether the study saw only a part of the program's references (``--filter``)."""
    options = result["run"].get("options", {})
    return bool(options.get("filter", ALL_REFERENCES) != ALL_REFERENCES)


def rows(result: Result) -> Sequence[declared.Row]:
    """The rows of a result."""
    found: Sequence[declared.Row] = result["rows"]
    return found


def machines(result: Result) -> list[str]:
    """The machines that were compared; empty where there is but one."""
    return list(result["run"].get("machines", ()))


def of_machine(result: Result, name: str) -> Result:
    """What was found on one of the machines."""
    run = {key: value for key, value in result["run"].items() if key != "machines"}
    return {**result, "run": run, "rows": [r for r in rows(result) if r["machine"] == name]}


def by_place(result: Result) -> Result:
    """The same with storages named ``machine/storage``, where several machines were compared.

    Where each has one storage, its name is the machine's. So whatever is shown by storage tells
    them apart. One that went through it is left as it is.
    """
    if not machines(result) or result.get("by_place"):
        return result
    places = {(row["machine"], row["storage"]) for row in rows(result)}
    alone = len(places) == len(machines(result))
    named = [
        {**row, "storage": row["machine"] if alone else f"{row['machine']}/{row['storage']}"}
        for row in rows(result)
    ]
    return {**result, "rows": named, "by_place": True}


def memories(result: Result) -> list[Memory]:
    """The memory sizes, smallest first."""
    return in_order(map(memory_of, rows(result)))


def memory_of(row: Mapping[str, Any]) -> Memory:
    """The memory size of one row."""
    return Memory(row["memory_bytes"], row["memory_fraction"])


def storages(result: Result) -> list[str]:
    """The storages, in the order in which the rows name them."""
    return list(dict.fromkeys(row["storage"] for row in rows(result)))


def page_sizes(result: Result) -> list[int]:
    """The page sizes in bytes, smallest first."""
    return sorted({row["page_bytes"] for row in rows(result)})


def best_pages(result: Result) -> dict[tuple[Memory, str], Best]:
    """The best page of every memory size and storage, keyed by both."""
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
    """The memory size to show first: nearest to half the footprint, else the middle of the list."""
    return middle(memories(result))


def answered_memory(result: Result) -> Memory:
    """The memory size that the answer on page sizes is for: of one memory size or more.

    The largest where the time is as the machine spends it, else the middle.
    """
    known = memories(result)
    spent = rows(result)[0].get("cpu_ns") is not None
    return known[-1] if spent else middle_memory(result) or known[-1]


def spread(items: Sequence[Memory], most: int) -> list[Memory]:
    """At most ``most`` of ``items``, evenly spaced, both ends kept."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[len(items) // 2]]
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


@dataclass(frozen=True)
class FitView:
    """One fit of a result, as shown.

    Attributes:
        quantity: ``tlb`` or ``fault``.
        memory: the memory size it belongs to; None for the TLB, or where it is not known.
        formula: the model over the page size p; unit: the unit of p.
        coefficients: ``(name, value, low, high)``; what is unknown is None.
        r2, rmse, loo_error: how well it fits (rates); None where unknown.
        verdict: ``good``, ``fair`` or ``bad``; reason: why.
        points: ``(page_bytes, measured, predicted)``, predicted None where there is no prediction.
        curve: ``(page_bytes, predicted)`` to draw a line through.
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
        """What the fit is of."""
        return QUANTITIES.get(self.quantity, units.clean(self.quantity))

    @property
    def memory_label(self) -> str:
        """The memory size as a cell of a table."""
        if self.quantity == "tlb":
            return "any"
        return self.memory.label if self.memory else "?"


def fits(result: Result) -> list[FitView]:
    """The fits of a result, in its order.

    A fit names its memory by ``memory_bytes``, ``memory_fraction`` or both; with neither, the
    measured points say which rows it was made from. Two spellings are read: coefficients as
    ``{name: {"value", "low", "high"}}`` with ``points`` and ``curve``, and those of
    :meth:`nearfar.models.Fit.to_dict`, with ``intervals``, ``page_bytes``, ``measured`` and
    ``fitted`` beside them. Without a ``curve`` the line goes through the predicted points.
    """
    rates: dict[Memory, dict[int, float]] = {}
    for row in rows(result):
        rates.setdefault(memory_of(row), {})[row["page_bytes"]] = row["fault_rate"]
    return [_view(fit, rates) for fit in result.get("fits") or []]


def _view(fit: Mapping[str, Any], rates: Mapping[Memory, Mapping[int, float]]) -> FitView:
    points = fit.get("points")
    if points is None:
        sizes = fit.get("page_bytes") or []
        predicted = fit.get("fitted") or [None] * len(sizes)
        points = list(zip(sizes, fit.get("measured") or [], predicted, strict=True))
    curve = fit.get("curve")
    if curve is None:
        curve = [(size, value) for size, _, value in points if value is not None]
    model, quantity = str(fit["model"]), str(fit["quantity"])
    intervals = fit.get("intervals") or {}
    coefficients = []
    for name, given in (fit.get("coefficients") or {}).items():
        if isinstance(given, Mapping):
            interval = (given["value"], given.get("low"), given.get("high"))
        else:
            interval = (given, *(intervals.get(name) or (None, None)))
        coefficients.append((str(name), *interval))
    loo = fit.get("loo_error")
    return FitView(
        quantity=quantity,
        memory=_memory_of_fit(fit, points, rates) if quantity == "fault" else None,
        formula=str(fit.get("formula") or MODELS.get(model, model)),
        unit=str(fit.get("page_unit") or "bytes"),
        coefficients=tuple(coefficients),
        r2=fit.get("r2"),
        rmse=fit.get("rmse"),
        loo_error=fit.get("loo_rmse") if loo is None else loo,
        verdict=str(fit["verdict"]),
        reason=str(fit.get("reason") or ""),
        points=tuple((int(p[0]), float(p[1]), p[2]) for p in points),
        curve=tuple((float(c[0]), float(c[1])) for c in curve if c[1] is not None),
    )


def _memory_of_fit(
    fit: Mapping[str, Any],
    points: Sequence[Sequence[Any]],
    rates: Mapping[Memory, Mapping[int, float]],
) -> Memory | None:
    size, fraction = fit.get("memory_bytes"), fit.get("memory_fraction")
    if size is not None or fraction is not None:
        return next(
            (
                memory
                for memory in rates
                if size in (None, memory.bytes) and fraction in (None, memory.fraction)
            ),
            None,
        )
    made_from = {int(p[0]): float(p[1]) for p in points}
    return next((m for m, known in rates.items() if made_from.items() <= known.items()), None)


MODELS = {"power": "a p^b", "exponential2": "a exp(b p) + c exp(d p)"}
"""Formula of each model over the page size p, for a fit that does not bring its own."""


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


QUANTITIES = {"tlb": "TLB miss rate", "fault": "fault rate"}
"""What a fit's ``quantity`` means."""
