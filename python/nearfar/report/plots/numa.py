"""The answer to each question of the numa study: time, latency, slowdown or bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nearfar import units
from nearfar.declared import numa_alloc, numa_pair, numa_plan, numa_run
from nearfar.numa import NumaResult, Row
from nearfar.report.html import charts
from nearfar.report.plots import Chart, bars


def draw(result: NumaResult[Row]) -> Chart:
    """Bars; a case that is not possible has none."""
    by_question: dict[str, Callable[[Any], Chart]] = {
        "alloc": _alloc, "run": _run, "pair": _pair, "plan": _plan
    }  # fmt: skip
    return by_question[result.run["question"]](result.rows)


def _alloc(rows: Sequence[numa_alloc.Row]) -> Chart:
    drawn: list[charts.Datum] = [
        {"size": units.size(row["size_bytes"]), "mode": row["mode"], "value": row["seconds"] * 1e9}
        for row in rows
        if row["seconds"] is not None
    ]
    title = "Allocating and clearing, by size and mode"
    return bars(drawn, title, x="size", series="mode", axis="time", label=charts.TIME_LABEL)


def _run(rows: Sequence[numa_run.Row]) -> Chart:
    drawn: list[charts.Datum] = [
        {"mode": row["mode"], "memory": units.size(row["footprint_bytes"]),
         "value": row["latency_ns"]}
        for row in rows
        if row["possible"]
    ]  # fmt: skip
    title = "Mean latency of a memory access, by mode"
    return bars(drawn, title, x="mode", series="memory", axis="latency", label=charts.TIME_LABEL)


def _pair(rows: Sequence[numa_pair.Row]) -> Chart:
    drawn: list[charts.Datum] = [
        {
            # Without an overlap, pages are in a random order.
            "overlap": "shuffled" if row["overlap"] is None else units.percent(row["overlap"]),
            "machine": name,
            "value": slowdown,
        }
        for row in rows
        for slowdown, name in ((row["slowdown_a"], "first"), (row["slowdown_b"], "second"))
    ]
    title = "How much slower two virtual machines are together than alone"
    return bars(
        drawn, title, x="overlap", series="machine", axis="times as slow", label=charts.RATE_LABEL
    )


def _plan(rows: Sequence[numa_plan.Row]) -> Chart:
    drawn: list[charts.Datum] = [
        {"mode": row["mode"], "plan": "chosen" if row["chosen"] else "possible",
         "value": row["gb_per_second"]}
        for row in rows
        if row["possible"]
    ]  # fmt: skip
    return bars(
        drawn, "Bandwidth by mode", x="mode", series="plan", axis="GB/s", label=charts.RATE_LABEL
    )
