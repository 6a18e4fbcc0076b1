"""The ``paging`` study: TLB misses, page faults and access time over page size and memory size.

It reproduces page-size advice (paper 000) and TLB and fault models (paper 001). The engine
simulates every page size and memory size in one pass over the trace (docs/paging.md) and computes
times; this module fits the models.

>>> result = paging("app.trace", machine="optane-ssd")      # doctest: +SKIP
>>> result.best(memory_fraction=0.5)["page_bytes"]          # doctest: +SKIP
16384
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypedDict, Unpack, cast

from nearfar import _engine, units
from nearfar import machine as machines
from nearfar.declared import paging as declared
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.info import HeatMap
from nearfar.memory_curve import Memory, in_order
from nearfar.page_choice import choose
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, default, takes
from nearfar.sizes import list_of
from nearfar.strict import Json

if TYPE_CHECKING:
    from nearfar.models import Fit

#: Points of a fitted curve in results.
_CURVE = 49
#: The filter that passes every reference.
ALL_REFERENCES: Final[str] = default(declared.OPTIONS, "filter")


class LeftOut(TypedDict):
    """A page size without rows, because the trace is a sample of 4 KiB pages.

    ``least_memory`` is the smallest memory with which it has a row; None if no memory is enough.
    """

    page_bytes: int
    least_memory: int | None


class TooFewFrames(TypedDict):
    """A page size and memory size without a row."""

    page_bytes: int
    memory_bytes: int
    memory_fraction: float | None


class Chosen(TypedDict):
    """The best page size of a machine, storage and memory size.

    ``gain``: the share of the time with 4 KiB pages that it saves; None without 4 KiB pages.
    """

    machine: str | None
    storage: str
    memory_bytes: int
    memory_fraction: float | None
    page_bytes: int
    gain: float | None


class PagingRun(Run, total=False):
    """The record of a paging run."""

    references: int
    footprint_bytes: int
    #: Whether the study follows the trace's events that map and free pages.
    pages_end: bool
    #: The peak resident set; None unless memory sizes are shares of it.
    peak_resident_bytes: int | None
    #: Page sizes without rows, because the trace is a sample.
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
    #: ``loo_rmse`` of the fit.
    loo_error: float | None
    #: Page size, measured rate, predicted rate (may be None).
    points: list[list[float | None]]
    #: Page size and predicted rate.
    curve: list[list[float]]


@dataclass(frozen=True)
class PagingResult(FolderResult):
    """The result of a paging study.

    Attributes:
        run: the record of the run: trace, machine, options, version.
        rows: one per page size x memory size x storage (docs/paging.md describes the keys).
        fits: the models of the TLB miss rate, and of the fault rate at each memory size.
        wall_seconds: duration of the run; not part of any reproducible output.
    """

    run: PagingRun
    rows: list[declared.Row]
    fits: list[PlainFit]
    wall_seconds: float = field(compare=False, default=0.0)

    shown = "nearfar.report.tables:paging"
    page = "nearfar.report.html.paging:PagingPage"
    chart = "nearfar.report.plots.paging:draw"
    plain = ("run", "rows", "fits", "chosen")
    columns: ClassVar[Rows] = declared.ROWS
    in_run = ("fits", "wall_seconds")

    def best(
        self,
        *,
        storage: str | None = None,
        memory_fraction: float | None = None,
        machine: str | None = None,
    ) -> declared.Row:
        """The row of the best page size, of a storage, memory size and machine if given.

        The fastest row decides which of several storages, memory sizes and machines is taken.
        :func:`nearfar.page_choice.choose` then chooses the page size.

        Raises:
            NearfarError: there is no such row.
        """
        rows = [
            row
            for row in self.rows
            if storage in (None, row["storage"])
            and machine in (None, row["machine"])
            and memory_fraction in (None, row["memory_fraction"])
        ]
        if not rows:
            raise NearfarError("best: no such storage, memory fraction or machine in this result")

        fastest = min(rows, key=lambda row: (row["total_ns"], row["page_bytes"]))
        candidates = [row for row in rows if _setup(row) == _setup(fastest)]
        return choose(candidates, whole=counts_whole(self.run)).row

    @property
    def chosen(self) -> list[Chosen]:
        """The best page size of each machine, storage and memory size."""
        groups: dict[object, list[declared.Row]] = {}
        for row in self.rows:
            groups.setdefault(_setup(row), []).append(row)
        choices = [choose(rows, whole=counts_whole(self.run)) for rows in groups.values()]
        return [
            {
                "machine": choice.row.get("machine"),
                "storage": choice.row["storage"],
                "memory_bytes": choice.row["memory_bytes"],
                "memory_fraction": choice.row["memory_fraction"],
                "page_bytes": choice.page_bytes,
                "gain": choice.gain,
            }
            for choice in choices
        ]

    def html(self, heatmap: HeatMap | None = None) -> str:
        """A self-contained page of the result."""
        return self._html(heatmap=heatmap)


def _setup(row: declared.Row) -> object:
    """Machine, storage and memory size of a row."""
    # Runs of older versions lack ``machine``.
    return row.get("machine"), row["storage"], row["memory_bytes"], row["memory_fraction"]


def counts_whole(run: Run) -> bool:
    """Whether the choice of page sizes counts the time to fill memory, too (``--whole``)."""
    return bool(run.get("options", {}).get("whole"))


@takes(declared.OPTIONS)
def paging(
    trace: str | PathLike[str],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> PagingResult:
    """Run the paging study.

    Args:
        trace: a trace folder, or a :class:`nearfar.trace.Trace`.
        progress: called regularly with the number of records done.
        {options}

    Raises:
        NearfarError: bad input.
    """
    path, began = Path(trace), time.monotonic()
    values: dict[str, object] = dict(options)
    wanted = list_of(options.get("storage") or ())
    hosts = machines.paging_machines(options.get("machine"), wanted)
    values.pop("machine", None)
    filter_name = options.get("filter", ALL_REFERENCES)
    if len(hosts) > 1 and filter_name != ALL_REFERENCES:
        raise NearfarError(
            f"--filter {filter_name}: {len(hosts)} machines have different caches; give one machine"
        )
    with view(path, filter_name, hosts[0], progress) as opened:
        text = _engine.paging(opened.path, hosts, options=values, progress=progress)
    return _result(path, hosts, opened.sentence, text, time.monotonic() - began)


def _result(
    path: Path, hosts: list[machines.Machine], references: str, text: str, seconds: float
) -> PagingResult:
    """The result from the engine's answer. ``references``: which were simulated, in words."""
    from nearfar.fit import fit_rows

    answer: Json = json.loads(text)
    rows: list[declared.Row] = answer["rows"]
    # Fit the first machine's rates: with `--view paper`, those of all machines are equal.
    first = [row for row in rows if row["machine"] == hosts[0].name]
    fits = [plain_fit(fit) for fit in fit_rows(first)]
    run = provenance(
        "paging",
        arguments=[path],
        options=declared.OPTIONS,
        values=answer["options"],
        trace=path,
        machine=hosts[0] if len(hosts) == 1 else hosts,
        view=references,
    )
    whole: PagingRun = {
        **run,
        "references": answer["records"],
        "footprint_bytes": answer["footprint_bytes"],
        "pages_end": answer["lifetimes"],
        "peak_resident_bytes": answer["peak_resident_bytes"],
        "left_out": [
            {"page_bytes": page_bytes, "least_memory": least}
            for page_bytes, least in answer["left_out"]
        ],
        "too_few_frames": answer["too_few_frames"],
    }
    return PagingResult(whole, rows, fits, seconds)


def warnings(result: PagingResult) -> list[str]:
    """Warnings for the user of a result, one line each."""
    run = result.run
    return [
        *trace_warnings(run),
        *machine_warnings(run),
        *sample_warnings(run),
        *burst_warnings(result),
        *too_few_frames(run),
    ]


def burst_warnings(result: PagingResult) -> list[str]:
    """A warning if a captured sample has too few bursts for TLB miss rates."""
    if result.run.get("sampled_pages") is None or result.rows[0]["tlb_miss_rate_high"] != 1:
        return []
    return [
        f"{result.run['trace']}: fewer than 50 bursts of the sample fill the TLB, too few to "
        f"estimate TLB misses (0 to 1 per reference) and times; capture a longer run"
    ]


def machine_warnings(run: Run) -> list[str]:
    """Warnings about machines of a run that lack a processor or were measured elsewhere."""
    lines = []
    hosts = run.get("machines") or {run["machine"]: run["machine_description"]}
    parsed = [machines.Machine.from_json(name, json.dumps(host)) for name, host in hosts.items()]
    lacking = {host.name: host.processor_lacks() for host in parsed}
    # None: the machine lacks nothing. If one machine lacks a processor, the papers' model gives
    # the times of all.
    mixed = None in lacking.values()
    for name, described in hosts.items():
        of_user = name not in machines.names()
        if lacking[name] is not None and (of_user or mixed):
            lines.append(f"times are those of the papers' model: {lacking[name]}")
        if of_user:
            # 0.1 s to import.
            from nearfar.measure.system import elsewhere

            if elsewhere(described["description"]):
                lines.append(
                    f"machine {name} was measured on another machine than this: "
                    f"{described['description']}"
                )
    return lines


def sample_warnings(run: PagingRun) -> list[str]:
    """A warning about the page sizes that have no rows because the trace is a sample, if any."""
    if not (left := run.get("left_out")):
        return []
    names = ", ".join(units.size(size["page_bytes"]) for size in left)
    text = f"{run['trace']}: a sample of 4 KiB pages; left out: pages of {names}"
    if memory := enough_for_left_out(run):
        text += (
            f"; larger pages need memory for all pages: append {math.ceil(memory / 2**20)}M to "
            f"--memory"
        )
    return [text]


def enough_for_left_out(run: PagingRun) -> int | None:
    """The largest ``least_memory`` of the page sizes in ``left_out``; None without one."""
    return max((size["least_memory"] or 0 for size in run.get("left_out", ())), default=0) or None


def too_few_frames(run: PagingRun) -> list[str]:
    """A warning about page and memory sizes without rows because of too few frames, if any."""
    cells: dict[int, list[Memory]] = {}
    # Runs of older versions lack this key.
    for cell in run.get("too_few_frames") or ():
        memory = Memory(cell["memory_bytes"], cell["memory_fraction"])
        cells.setdefault(cell["page_bytes"], []).append(memory)
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


def trace_warnings(run: Run) -> list[str]:
    """Warnings about the trace of a run."""
    lines = []
    if not run["trace_complete"]:
        lines.append(f"{run['trace']}: the trace is incomplete; this is what it holds so far")
    if run["sampled_trace"]:
        lines.append(f"{run['trace']}: a sampled trace; reuse, and so every rate, is not exact")
    if run.get("thp_disabled"):
        lines.append(
            f"{run['trace']}: a process switches huge pages off for itself (prctl "
            "PR_SET_THP_DISABLE; Redis: disable-thp): no setting of the kernel gives it larger ones"
        )
    if (share := run.get("sampled_pages")) is not None:
        lines.append(
            f"{run['trace']}: a sample of {units.percent(share)} of the pages; rates are estimates "
            "with 95 % intervals"
        )
        if run.get("options", {}).get("view") == "machine":
            lines.append(
                "TLBs, caches and memory are simulated with the recorded references alone: TLB "
                "misses and times are lower bounds, and slowdowns upper bounds"
            )
    return lines


def plain_fit(fit: Fit) -> PlainFit:
    """A fit as results have it: coefficients with their intervals, points and curve."""
    plain = fit.to_dict()
    fitted: Sequence[float | None] = plain["fitted"] or [None] * len(plain["measured"])
    curve: list[list[float]] = []
    if fit.coefficients:
        low, high = min(fit.page_bytes), max(fit.page_bytes)
        steps = [low * (high / low) ** (i / (_CURVE - 1)) for i in range(_CURVE)]
        curve = [[p, float(rate)] for p, rate in zip(steps, fit.predict(steps), strict=True)]
    values: Json = {
        **plain,
        "coefficients": {
            name: {"value": value, "low": low, "high": high}
            for name, value in plain["coefficients"].items()
            for low, high in [(plain["intervals"] or {}).get(name, (None, None))]
        },
        "loo_error": plain["loo_rmse"],
        "points": [
            list(point)
            for point in zip(plain["page_bytes"], plain["measured"], fitted, strict=True)
        ],
        "curve": curve,
    }
    return cast("PlainFit", {name: values[name] for name in PlainFit.__annotations__})
