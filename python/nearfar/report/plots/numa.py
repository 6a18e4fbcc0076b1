"""What each question of the numa study asks: time, latency, slowdown, bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nearfar import units
from nearfar.report.html import charts
from nearfar.report.plots import bars

if TYPE_CHECKING:
    from nearfar.numa import NumaResult

Rows = Sequence[Mapping[str, Any]]
_PLAIN = "format(datum.value, '~g')"


def draw(result: NumaResult[Any]) -> Any:
    """Bars; a case that cannot be done has none."""
    return _QUESTIONS[result.run["question"]](result.rows)


def _alloc(rows: Rows) -> Any:
    drawn = [
        {"size": units.size(row["size_bytes"]), "mode": row["mode"], "value": row["seconds"] * 1e9}
        for row in rows
        if row["possible"]
    ]
    title = "Allocating and clearing, by size and mode"
    return bars(drawn, title, x="size", series="mode", axis="time", label=charts.TIME_LABEL)


def _run(rows: Rows) -> Any:
    drawn = [
        {"mode": row["mode"], "memory": units.size(row["footprint_bytes"]),
         "value": row["latency_ns"]}
        for row in rows
        if row["possible"]
    ]  # fmt: skip
    title = "Mean latency of a memory access, by mode"
    return bars(drawn, title, x="mode", series="memory", axis="latency", label=charts.TIME_LABEL)


def _pair(rows: Rows) -> Any:
    drawn = [
        {
            # Pages that lie at random overlap by chance.
            "overlap": "shuffled" if row["shuffled"] else units.percent(row["overlap"]),
            "machine": name,
            "value": row[f"slowdown_{guest}"],
        }
        for row in rows
        for guest, name in (("a", "first"), ("b", "second"))
    ]
    title = "How much slower two virtual machines are together than alone"
    return bars(drawn, title, x="overlap", series="machine", axis="times as slow", label=_PLAIN)


def _plan(rows: Rows) -> Any:
    drawn = [
        {"mode": row["mode"], "plan": "chosen" if row["chosen"] else "possible",
         "value": row["gb_per_second"]}
        for row in rows
        if row["possible"]
    ]  # fmt: skip
    return bars(drawn, "Bandwidth by mode", x="mode", series="plan", axis="GB/s", label=_PLAIN)


_QUESTIONS: Mapping[str, Callable[[Rows], Any]] = {
    "alloc": _alloc,
    "run": _run,
    "pair": _pair,
    "plan": _plan,
}
