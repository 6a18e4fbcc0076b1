"""The ``thp`` study: a program under settings for transparent huge pages (docs/thp.md).

>>> result = thp("app.trace", policy="never,always")      # doctest: +SKIP
>>> result.best["policy"]                                 # doctest: +SKIP
'always'
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypedDict, Unpack, cast

from nearfar import _engine, units
from nearfar import machine as machines
from nearfar.columns import number, text
from nearfar.declared import thp as declared
from nearfar.gain_error import equal_best, gain_error
from nearfar.page_choice import FREE_GROWTH, GROWTH_PER_GAIN
from nearfar.paging import machine_warnings, trace_warnings
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, takes
from nearfar.strict import Json

if TYPE_CHECKING:
    import pyarrow

#: The policy that others are compared with, if it is studied; otherwise the first one.
BASE: Final = "never"
#: Policies that have a name.
_NAMED: Final = {
    name for option in declared.OPTIONS if option.name == "policy" for name, _ in option.choices
}


#: What the program should advise for an area that gains, and for one that only adds memory.
HUGE: Final = "MADV_HUGEPAGE"
NO_HUGE: Final = "MADV_NOHUGEPAGE"
#: The minimum share of the whole time that an area must save to be advised huge pages.
_WORTH: Final = 0.001
#: Memory that an area may add without a gain, as a share of that of the program.
FREE_GROWTH_OF_AREA: Final = 0.01

#: Tables besides the rows: areas under a policy.
TABLES: Final = {
    "areas": Rows(
        columns=(
            text("policy", "The policy: a setting of transparent huge pages."),
            text("area", "The mapping in which memory was first touched."),
            number(
                "wait_ns",
                "Time that references of the area wait for TLBs, page walks, caches and memory.",
                "ns per reference of the program",
                title="waits",
            ),
            number(
                "fault_ns",
                "Time of page faults and swapping in the area.",
                "ns per reference of the program",
                title="faults",
            ),
            number(
                "start_ns",
                "Part of `fault_ns` for faults that raise the peak of private memory or map "
                "existing pages.",
                "ns per reference of the program",
                title="start",
            ),
            number("mean_bytes", "Mean private memory of the area.", "bytes", title="mean"),
            number(
                "large_bytes",
                "Part of `mean_bytes` in pages larger than 4 KiB.",
                "bytes",
                title="large",
            ),
            number(
                "saved_ns",
                "Time saved in the area once memory is filled, compared with `never` (without it, "
                "the first policy).",
                "ns per reference of the program",
                title="saves",
            ),
            number(
                "saved_share", "`saved_ns` as a share of the time of the program.", title="gain"
            ),
            number(
                "added_bytes",
                "Mean memory added to the area, compared with `never` (without it, the first "
                "policy).",
                "bytes",
                title="adds",
            ),
            text(
                "advice",
                "`MADV_HUGEPAGE`: the area has larger pages and saves at least 0.1 % of the time. "
                "`MADV_NOHUGEPAGE`: the area adds more than 1 % to the memory of the program, and "
                "more than twice the share of time that it saves. Otherwise empty.",
            ),
        ),
        keys=("policy", "area"),
        metrics={"saved_ns": "more", "added_bytes": "less"},
    ),
}


class _Area(TypedDict):
    """An area as the engine returns it (``crates/study/src/thp/areas.rs``)."""

    policy: str
    area: str
    wait_ns: float
    fault_ns: float
    start_ns: float
    mean_bytes: float
    large_bytes: float


@dataclass(frozen=True)
class ThpResult(FolderResult):
    """Policies compared.

    Attributes:
        run: the record of the run.
        rows: one per policy (docs/thp.md describes the keys).
        points: memory over time, by policy.
        areas: each area under each policy, with ``by_area``; they add up to the policy's row.
        notes: warnings, one per line.
    """

    run: Run
    rows: list[declared.Row]
    points: list[declared.PointsRow]
    areas: list[declared.AreasRow]
    notes: list[str] = field(compare=False, default_factory=list)

    shown = "nearfar.report.thp:view"
    page = "nearfar.report.html.thp:ThpPage"
    chart = "nearfar.report.plots.thp:draw"
    plain = ("run", "rows", "points", "areas")
    columns: ClassVar[Rows] = declared.ROWS

    @classmethod
    def restore(cls, run: Json, tables: Mapping[str, pyarrow.Table]) -> ThpResult:
        """Read what :meth:`write` wrote."""
        rows, points = (tables[name].to_pylist() for name in ("result", "points"))
        areas = tables["areas"].to_pylist() if "areas" in tables else []
        return cls(cast("Run", run), rows, points, areas)

    def _tables(self) -> Mapping[str, pyarrow.Table]:
        tables = {"result": self.table, "points": declared.POINTS_ROWS.table(self.points)}
        if self.areas:
            tables["areas"] = declared.AREAS_ROWS.table(self.areas)
        return tables

    @property
    def base(self) -> declared.Row:
        """The row that others are compared with."""
        return _base(self.rows)

    def gain(self, row: declared.Row) -> float:
        """The share of time that a policy saves once memory is filled."""
        base = steady_ns(self.base)
        return 1 - steady_ns(row) / base if base else 0.0

    def growth(self, row: declared.Row) -> float:
        """The share by which mean memory grows."""
        return row["mean_bytes"] / self.base["mean_bytes"] - 1 if self.base["mean_bytes"] else 0.0

    @property
    def best(self) -> declared.Row:
        """The policy to use: of those that gain more than the error of a prediction and do not cost
        too much memory, the one with least memory whose gain equals the largest within that error.
        """
        gains = {
            row["policy"]: gain
            for row in self.rows
            if self.growth(row) <= max(FREE_GROWTH, GROWTH_PER_GAIN * (gain := self.gain(row)))
        }
        equal = equal_best(gains)
        rows = [row for row in self.rows if row["policy"] in equal]
        return min(rows, key=lambda row: row["mean_bytes"], default=self.base)

    @property
    def sentence(self) -> str:
        """The policy to use, and why, without a full stop."""
        best, base = self.best, self.base
        if best is not base:
            return (
                f"{best['policy']}; it takes {units.percent(self.gain(best))} less time than "
                f"{base['policy']} once memory is filled, with {self._memory(best)}"
            )
        others = [row for row in self.rows if row is not base]
        if not others:
            return f"{best['policy']}; it is the only one"
        most = max(others, key=self.gain)
        gain = self.gain(most)
        if gain <= gain_error(gain):
            why = "the time that others save is within the error of a prediction"
        else:
            why = (
                f"{most['policy']} takes {units.percent(gain)} less time once memory is filled, "
                f"but {self._memory(most)}"
            )
        return f"{best['policy']}; {why}"

    def _memory(self, row: declared.Row) -> str:
        more = self.growth(row)
        if more >= 1:
            return f"{units.digits(1 + more, 2)} times the memory"
        return f"{units.percent(abs(more))} {'more' if more >= 0 else 'less'} memory"


def _base(rows: Sequence[declared.Row]) -> declared.Row:
    return next((row for row in rows if row["policy"] == BASE), rows[0])


def _compared(areas: Sequence[_Area], base: declared.Row) -> list[declared.AreasRow]:
    """Areas compared with those of the policy ``base``, or with 0 if that lacks the area."""
    base_areas = {area["area"]: area for area in areas if area["policy"] == base["policy"]}
    whole_ns = steady_ns(base) or 1.0
    compared: list[declared.AreasRow] = []
    for area in areas:
        before = base_areas.get(area["area"])
        saved = (_steady(before) if before else 0.0) - _steady(area)
        added = area["mean_bytes"] - (before["mean_bytes"] if before else 0.0)
        share = saved / whole_ns
        allowed = max(FREE_GROWTH_OF_AREA, GROWTH_PER_GAIN * share) * base["mean_bytes"]
        gains = share >= _WORTH and area["large_bytes"] > 0
        advice = NO_HUGE if added > allowed else HUGE if gains else ""
        change = {"saved_ns": saved, "saved_share": share, "added_bytes": added, "advice": advice}
        compared.append(cast("declared.AreasRow", {**area, **change}))
    return compared


def _steady(area: _Area) -> float:
    """Nanoseconds per reference, without the time in which memory is filled."""
    return area["wait_ns"] + area["fault_ns"] - area["start_ns"]


def is_policy(text: str) -> bool:
    """Whether a text is meant as a policy, not as a page size."""
    return "=" in text or text in _NAMED


def largest(policy: str) -> int:
    """Bytes of the largest page that a policy may give; 2 MiB if it gives none."""
    return max(dict(_engine.parse_policy(policy, "huge pages")), default=2 << 20)


def settings(policy: str) -> dict[str, str]:
    """The kernel's settings for a policy, by file below /sys/kernel/mm/transparent_hugepage.

    Sizes that are not named are ``never``.

    Raises:
        NearfarError: it is no policy.
    """
    words = _engine.parse_policy(policy, "huge pages")
    if policy in _NAMED:
        chosen = {"enabled": "always" if policy == "defer" else policy}
        return chosen | ({"defrag": "defer"} if policy == "defer" else {})
    # By default, the kernel has `inherit` for 2 MiB, and `never` for smaller sizes.
    kib = {2048: "never"} | {size >> 10: word for size, word in words}
    return {f"hugepages-{size}kB/enabled": word for size, word in kib.items()}


def steady_ns(row: declared.Row) -> float:
    """Nanoseconds per reference, without the time in which memory is filled."""
    return row["total_ns"] - row["start_ns"]


@takes(declared.OPTIONS)
def thp(
    trace: str | PathLike[str],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> ThpResult:
    """Compare settings for transparent huge pages.

    Args:
        trace: a trace folder, or a :class:`nearfar.trace.Trace`.
        progress: called now and then with the number of records done.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    path = Path(trace)
    machine = machines.paging_machine(options.pop("machine", None))
    answer: Json = json.loads(_engine.thp(path, machine, options=options, progress=progress))
    run = provenance(
        "thp",
        arguments=[path],
        options=declared.OPTIONS,
        values=answer["options"],
        trace=path,
        machine=machine,
    )
    notes = [*trace_warnings(run), *machine_warnings(run)]
    if not answer["lifetimes"]:
        notes.append(
            "the trace has no mapping events: all memory counts as private, and khugepaged "
            "collapses nothing"
        )
    rows, areas = answer["rows"], _compared(answer["areas"], _base(answer["rows"]))
    return ThpResult(run, rows, answer["points"], areas, notes)
