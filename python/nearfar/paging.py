"""The ``paging`` study: TLB misses, page faults and access time over page size and memory size.

The study of page-size advice (000) and TLB and fault models (001). The engine simulates every
page size and memory size in one pass over the trace (docs/paging.md); this module adds times and
fits the models.

>>> result = paging("app.trace", machine="optane-ssd")      # doctest: +SKIP
>>> result.best(memory_fraction=0.5)["page_bytes"]          # doctest: +SKIP
16384
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict, Unpack

from nearfar import _engine, units
from nearfar import machine as machines
from nearfar.declared import paging as declared
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.info import HeatMap
from nearfar.memory_curve import Memory, in_order
from nearfar.models import Fit
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, default, takes
from nearfar.sizes import list_of

#: How much longer the smallest page size takes than the largest, about: 512 bytes against 2 MiB on
#: a Zipf trace.
_SMALLEST = 3.0
#: Points of a fitted curve that go into results, between the smallest and largest page size.
_CURVE = 49
#: The filter that passes every reference.
ALL_REFERENCES: Final[str] = default(declared.OPTIONS, "filter")


class PagingRun(Run, total=False):
    """How a paging study was made."""

    references: int
    footprint_bytes: int
    #: Whether pages ended, as the trace's events say.
    pages_end: bool
    #: The peak resident set, where memory sizes are parts of it.
    peak_resident_bytes: int | None
    #: Page sizes that a sample had too few pages of, each with the least rate that would do.
    left_out: list[LeftOut]
    #: Page and memory sizes without rows: the memory has fewer than 8 frames.
    too_few_frames: list[TooFewFrames]


class LeftOut(TypedDict):
    """A page size without rows; ``least_sample`` is ``None`` where only all pages would do."""

    page_bytes: int
    least_sample: float | None


class TooFewFrames(TypedDict):
    """A page size and memory size without a row."""

    page_bytes: int
    memory_bytes: int
    memory_fraction: float | None


class Interval(TypedDict):
    """A fitted coefficient; ``low`` and ``high`` bound it with the fit's confidence."""

    value: float | None
    low: float | None
    high: float | None


class PlainFit(TypedDict):
    """A fit of :class:`nearfar.models.Fit` as results carry it."""

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
    points: list[list[float | None]]
    curve: list[list[float]]


@dataclass(frozen=True)
class PagingResult(FolderResult):
    """What a paging study found.

    Attributes:
        run: how it was made: trace, machine, options, version; no times of day.
        rows: one mapping per page size x memory size x storage (docs/paging.md names the keys).
        fits: the models of the TLB miss rate and of the fault rate at each memory size.
        wall_seconds: how long it took; kept out of everything that must be the same every time.
    """

    run: PagingRun
    rows: list[declared.Row]
    fits: list[PlainFit]
    wall_seconds: float = field(compare=False, default=0.0)

    shown = "nearfar.report.tables:paging"
    page = "nearfar.report.html.paging:PagingPage"
    chart = "nearfar.report.plots.paging:draw"
    plain = ("run", "rows", "fits")
    columns: ClassVar[Rows] = declared.ROWS

    @classmethod
    def restore(cls, run: Any, tables: Mapping[str, Any]) -> PagingResult:
        """Read back what :meth:`write` wrote."""
        kept: Any = dict(run)
        fits, seconds = kept.pop("fits"), kept.pop("wall_seconds")
        return cls(kept, tables["result"].to_pylist(), fits, seconds)

    def _run(self) -> Mapping[str, Any]:
        return {**self.run, "fits": self.fits, "wall_seconds": round(self.wall_seconds, 3)}

    def best(
        self,
        *,
        storage: str | None = None,
        memory_fraction: float | None = None,
        machine: str | None = None,
    ) -> declared.Row:
        """Return the row of least total time among those of a storage, memory size and machine.

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
        return min(rows, key=lambda row: (row["total_ns"], row["page_bytes"]))

    def html(self, heatmap: HeatMap | None = None) -> str:
        """Draw a self-contained page of the result."""
        return self._html(heatmap=heatmap)


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
        progress: called now and then with the records done.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    asked, path, began = _Asked.of(options), Path(trace), time.monotonic()
    with view(path, asked.filtered, asked.hosts[0], progress) as seen:
        text = _engine.paging(seen.path, asked.hosts, options=asked.values, progress=progress)
    return _result(asked, path, seen.sentence, text, time.monotonic() - began)


# --- in parts: a study whose page sizes are studied apart, by several processes


def pieces(
    trace: str | PathLike[str],  # noqa: ARG001
    **options: Unpack[declared.Options],
) -> dict[int, float]:
    """What a study can be split into: its page sizes, and about how much work each is.

    Every part decodes the trace, and serves all memory sizes of its page sizes in that one pass.
    Memory sizes are not worth parts of their own: ten take 1.5 to 4 times as long as one,
    not ten times. None where there is little to do besides decoding: for a sample, or behind a
    filter.

    Raises:
        NearfarError: bad input, as :func:`paging`.
    """
    asked = _Asked.of(options)
    found = json.loads(_engine.paging_options(asked.hosts, options=asked.values))
    sizes: list[int] = found["page_sizes"]
    if asked.filtered != ALL_REFERENCES or found["options"]["sample"] is not None:
        return {}
    last = max(len(sizes) - 1, 1)
    return {size: _SMALLEST + (1 - _SMALLEST) * at / last for at, size in enumerate(sizes)}


def part(
    only: Sequence[int], trace: str | PathLike[str], **options: Unpack[declared.Options]
) -> dict[str, Any]:
    """Run a study of some of its :func:`pieces` alone; gives plain values for :func:`joined`."""
    asked = _Asked.of(options)
    with view(Path(trace), asked.filtered, asked.hosts[0]) as seen:
        text = _engine.paging_part(seen.path, asked.hosts, options=asked.values, only=only)
    return {"counted": text, "view": seen.sentence}


def joined(
    parts: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
    seconds: float,
    trace: str | PathLike[str],
    **options: Unpack[declared.Options],
) -> PagingResult:
    """What :func:`paging` gives, of parts that have every page size of the study once.

    Args:
        parts: the page sizes of each, and what :func:`part` gave.
        seconds: how long they took together.
    """
    asked, counted = _Asked.of(options), [one["counted"] for _, one in parts]
    text = _engine.paging_joined(asked.hosts, options=asked.values, parts=counted)
    return _result(asked, Path(trace), parts[0][1]["view"], text, seconds)


@dataclass(frozen=True)
class _Asked:
    """The options of a study: its machines, and what the engine reads."""

    hosts: list[machines.Machine]
    values: dict[str, Any]
    filtered: str

    @classmethod
    def of(cls, options: declared.Options) -> _Asked:
        values: dict[str, Any] = dict(options)
        storage = options.get("storage") or ()
        wanted = list_of(storage) if isinstance(storage, str) else storage
        hosts = machines.paging_machines(options.get("machine"), wanted)
        values.pop("machine", None)
        filtered = options.get("filter", ALL_REFERENCES)
        if len(hosts) > 1 and filtered != ALL_REFERENCES:
            raise NearfarError(
                f"--filter {filtered}: {len(hosts)} machines have caches of their own, and no "
                "references in common; give one machine"
            )
        return cls(hosts, values, filtered)


def _result(asked: _Asked, path: Path, seen: str, text: str, seconds: float) -> PagingResult:
    """The result of what the engine says, of references that were seen so."""
    from nearfar.fit import fit_rows

    hosts, answer = asked.hosts, json.loads(text)
    rows: list[declared.Row] = answer["rows"]
    # Rates are those of the first machine: in the papers' view, of all.
    first = [row for row in rows if row["machine"] == hosts[0].name]
    fits = [_plain(fit) for fit in fit_rows(first)]
    run = provenance(
        "paging",
        arguments=[path],
        options=declared.OPTIONS,
        values=answer["options"],
        trace=path,
        machine=hosts[0] if len(hosts) == 1 else hosts,
        view=seen,
    )
    whole: PagingRun = {
        **run,
        "references": answer["records"],
        "footprint_bytes": answer["footprint_bytes"],
        "pages_end": answer["lifetimes"],
        "peak_resident_bytes": answer["peak_resident_bytes"],
        "left_out": [
            {"page_bytes": page_bytes, "least_sample": least}
            for page_bytes, least in answer["left_out"]
        ],
        "too_few_frames": answer["too_few_frames"],
    }
    return PagingResult(whole, rows, fits, seconds)


def warnings(result: PagingResult) -> list[str]:
    """What a reader of the result should know: lines of plain text."""
    run = result.run
    lines = [*trace_warnings(run), *machine_warnings(run), *sample_warnings(run)]
    return [*lines, *too_few_frames(run)]


def machine_warnings(run: Mapping[str, Any]) -> list[str]:
    """What a reader should know of the machines of a run, where their files are the user's own."""
    from nearfar.measure.system import elsewhere

    lines = []
    hosts = run.get("machines") or {run["machine"]: run["machine_description"]}
    parsed = [machines.Machine.from_json(name, json.dumps(one)) for name, one in hosts.items()]
    lacking = {one.name: one.processor_lacks() for one in parsed}
    # One that lacks it makes the times of all those of the papers' model.
    mixed = None in lacking.values()
    for name, described in hosts.items():
        own = name not in machines.names()
        if lacking[name] is not None and (own or mixed):
            lines.append(f"times are those of the papers' model: {lacking[name]}")
        if own and elsewhere(described["description"]):
            lines.append(
                f"machine {name} was measured on another machine than this: "
                f"{described['description']}"
            )
    return lines


def sample_warnings(run: PagingRun) -> list[str]:
    """The page sizes that a sample left out, and the least rates that would do."""
    if not (left := run.get("left_out")):
        return []
    sizes = [
        f"{units.size(one['page_bytes'])} ({one['least_sample'] or 'all of them'})" for one in left
    ]
    return [
        f"--sample {run['options']['sample']:g} takes too few pages of {', '.join(sizes)}: they "
        "are left out; in brackets the least that would do"
    ]


def too_few_frames(run: PagingRun) -> list[str]:
    """Which cells the study left out, because their memory has too few frames: one line, or none.

    Runs of older versions have rows for such cells instead.
    """
    cells: dict[int, list[Memory]] = {}
    for cell in run.get("too_few_frames") or ():
        memory = Memory(cell["memory_bytes"], cell["memory_fraction"])
        cells.setdefault(cell["page_bytes"], []).append(memory)
    if not cells:
        return []
    # Adjacent page sizes that lack the same memory sizes are named together.
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


def trace_warnings(run: Mapping[str, Any]) -> list[str]:
    """What a reader should know of the trace of a run."""
    lines = []
    if not run["trace_complete"]:
        lines.append(f"{run['trace']}: the trace is incomplete; this is what it holds so far")
    if run["sampled_trace"]:
        lines.append(f"{run['trace']}: a sampled trace; reuse, and so every rate, is not exact")
    return lines


def _plain(fit: Fit) -> PlainFit:
    """Lay out a fit as results carry it: coefficients with their intervals, points and curve."""
    plain = fit.to_dict()
    fitted: Sequence[float | None] = plain["fitted"] or [None] * len(plain["measured"])
    curve: list[list[float]] = []
    if fit.coefficients:
        low, high = min(fit.page_bytes), max(fit.page_bytes)
        steps = [low * (high / low) ** (i / (_CURVE - 1)) for i in range(_CURVE)]
        curve = [[p, float(rate)] for p, rate in zip(steps, fit.predict(steps), strict=True)]
    return {
        "quantity": plain["quantity"],
        "model": plain["model"],
        "formula": plain["formula"],
        "page_unit": plain["page_unit"],
        "memory_bytes": plain["memory_bytes"],
        "memory_fraction": plain["memory_fraction"],
        "coefficients": {
            name: {"value": value, "low": low, "high": high}
            for name, value in plain["coefficients"].items()
            for low, high in [(plain["intervals"] or {}).get(name, (None, None))]
        },
        "confidence": plain["confidence"],
        "r2": plain["r2"],
        "adjusted_r2": plain["adjusted_r2"],
        "rmse": plain["rmse"],
        "loo_mean_relative": plain["loo_mean_relative"],
        "verdict": plain["verdict"],
        "reason": plain["reason"],
        "loo_error": plain["loo_rmse"],
        "points": [
            list(point)
            for point in zip(plain["page_bytes"], plain["measured"], fitted, strict=True)
        ],
        "curve": curve,
    }
