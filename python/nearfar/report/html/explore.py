"""The page of several runs, or of a sweep: rows to filter, axes to choose, paired differences."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from nearfar import units
from nearfar.declared import diff as declared
from nearfar.diff import Level, across, flat
from nearfar.errors import NearfarError
from nearfar.report.diff import signed
from nearfar.report.html import charts, page
from nearfar.run_folder import Run

Row = Mapping[str, Any]

#: Characters of data in a page; with the charting library it stays under 3 MB.
MAX_CHARACTERS: Final = 1_800_000
#: Levels of a column that can be chosen from, drawn as colours, compared.
_CHOICES, _COLOURS, _LEVELS = 60, 12, 12
#: What a number is, by the end of its column's name: the label of an axis.
_LABELS: Final = {
    "_bytes": charts.SIZE_LABEL,
    "_ns": charts.TIME_LABEL,
}


class ExplorePage(page.Page):
    """Runs of one study, or a sweep: rows to filter, axes to choose, paired differences.

    Args:
        runs: one sweep or run, or several; their names tell them apart.

    Raises:
        NearfarError: there are no rows, or no numbers.
    """

    csv = True
    scripts = ("common.js", "explore.js")

    def __init__(self, runs: Sequence[Run]) -> None:
        """Pair, cut and describe the rows."""
        rows, keys, self.names = _rows(runs)
        rows = _without_folders(rows, keys)
        if not rows:
            raise NearfarError(f"{runs[0].path}: has no rows to draw")
        columns = runs[0].columns
        self.metrics = {
            name: better
            for name, better in columns.metrics.items()
            if any(row[name] is not None for row in rows)
        }
        if not self.metrics:
            raise NearfarError(f"{runs[0].path}: has no numbers to draw")
        varying = [key for key in keys if len({row[key] for row in rows}) > 1]
        self.constant = {key: rows[0][key] for key in keys if key not in varying}
        varying = varying or keys[:1]
        self.apart = _apart(runs, varying)
        self.differences = _differences(rows, varying, self.metrics, self.apart)
        shown, self.left_out = _fitting(rows, varying, self.metrics, columns.seed)
        self.x = _first_x([key for key in varying if key != columns.seed] or varying, shown)
        study = runs[0].study.name
        names = ", ".join(self.names)
        what = "a sweep of" if len(runs) == 1 and runs[0].is_sweep else "runs of"
        self.title = f"{names} - nearfar"
        self.kicker = f"nearfar: report of {study}"
        self.heading = f"{page.text(names)}: {what} <code>{study}</code>"
        self.headline = _finding(rows, self.metrics, bool(self.apart))
        shown_columns = (*varying, *self.metrics)
        super().__init__(
            {
                "runs": [_made(run) for run in runs],
                "columns": [_column(name, shown, name in self.metrics) for name in shown_columns],
            }
        )

    def _sections(self) -> list[str]:
        filters = (
            '<div id="filters" class="checks"></div>'
            '<p><label for="search">Rows that contain</label> <input id="search" type="search"></p>'
            '<p class="muted" id="count" aria-live="polite"></p>'
        )
        note = f'<p class="note">{page.text(self.left_out)}</p>' if self.left_out else ""
        picks = "".join(_pick(name, title) for name, title in _PICKS)
        log = '<label class="check"><input type="checkbox" id="log"> logarithmic</label>'
        chart = page.chart(
            "explore",
            "The chosen number against the chosen column",
            "Points: means of the rows above with the same x and colour; bars: minimum to maximum.",
        )
        order = f'<div class="checks">{_pick("sort", "order")}</div><div id="rows-table"></div>'
        better = ((name, f"{page.text(less)} is better") for name, less in self.metrics.items())
        return [
            page.section("filter", "Rows", note + filters, wide=True),
            page.section(
                "explore", "Chart", f'<div class="checks">{picks}{log}</div>{chart}', True
            ),
            *self._paired(),
            page.section("table", "The rows", order, wide=True),
            *self._constant(),
            page.section("metrics", "Numbers", page.definitions(better)),
        ]

    def _paired(self) -> list[str]:
        if not self.differences:
            return []
        how = page.typeset(
            "Rows that differ in this column only are paired. Change: the mean relative "
            "difference, with its 95 % confidence interval (Student's t over the pairs)."
        )
        body = f'<div class="checks">{_pick("by", "column")}{_pick("of", "number")}</div>'
        body += f'<p>{page.text(how)}</p><div id="differences-table"></div>'
        return [page.section("differences", "Paired differences", body, wide=True)]

    def _constant(self) -> list[str]:
        if not self.constant:
            return []
        pairs = ((key, page.text(_text(value))) for key, value in self.constant.items())
        return [page.section("constant", "The same in every row", page.definitions(pairs))]

    def _made(self) -> str:
        return "".join(
            f"<h3>{page.text(name)}</h3>{page.run_facts(run)}"
            for name, run in zip(self.names, self.result["runs"], strict=True)
        )

    def _data(self) -> dict[str, object]:
        model = {
            "charts": {"explore": {"spec": _spec()}},
            "metrics": self.metrics,
            "differences": self.differences,
            "heads": ["against", *declared.ROWS.heads("pairs", "relative", "low", "verdict")],
            "limits": {"choices": _CHOICES, "colours": _COLOURS},
            "axes": _LABELS,
            "x": self.x,
        }
        return {"result": self.result, "model": model}


_PICKS: Final = (("x", "x"), ("y", "y"), ("colour", "colour"))


def _pick(name: str, title: str) -> str:
    return f'<label class="check">{title} <select id="pick-{name}"></select></label>'


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _without_folders(rows: Sequence[Row], keys: Sequence[str]) -> list[Row]:
    """Paths without the folder that all of a column lie in."""
    found: list[dict[str, Any]] = [dict(row) for row in rows]
    for key in keys:
        values = [row[key] for row in rows]
        if not all(isinstance(value, str) and "/" in value.strip("/") for value in values):
            continue
        folders = [value.rstrip("/").rpartition("/")[0].split("/") for value in values]
        shared = len(os.path.commonprefix(folders))
        for row in found:
            row[key] = "/".join(row[key].split("/")[shared:])
    return list(found)


def _rows(runs: Sequence[Run]) -> tuple[list[Row], list[str], list[str]]:
    """All rows, the columns that pair them, and a name for each run."""
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        names = [str(run.path) for run in runs]
    rows: list[Row] = []
    keys: dict[str, None] = {"run": None} if len(runs) > 1 else {}
    for name, run in zip(names, runs, strict=True):
        own, named = flat(run)
        keys |= dict.fromkeys(named)
        rows += [{"run": name, **row} for row in own]
    rows = [{**row, **{key: None for key in keys if key not in row}} for row in rows]
    return rows, list(keys), names


def _made(run: Run) -> Mapping[str, object]:
    """How a run was made, without the machine's pages of numbers."""
    made: Mapping[str, Any] = getattr(run.result, "run", {})
    left = ("machine_description", "machines", "fits", "details")
    return {"folder": run.name, **{k: v for k, v in made.items() if k not in left}}


def _apart(runs: Sequence[Run], keys: Sequence[str]) -> set[str]:
    """Columns whose levels are of different traces: neither is better than the other."""
    traces = {str(getattr(run.result, "run", {}).get("trace_json_sha256")) for run in runs}
    apart = {key for key in keys if key in ("trace", "workload")}
    return apart | ({"run"} if len(traces) > 1 else set())


def _finding(rows: Sequence[Row], metrics: Mapping[str, str], apart: bool) -> str:
    """One sentence: the best row by the first number, if all are of one trace."""
    if apart:
        return f"{len(rows)} rows of different traces: compare rows of one trace with each other."
    metric, better = next(iter(metrics.items()))
    known = [row for row in rows if row[metric] is not None]
    pick = min if better == "less" else max
    best = pick(known, key=lambda row: float(row[metric]))
    where = ", ".join(
        f"{key} {units.size(value) if key.endswith('_bytes') else value}"
        for key, value in best.items()
        if key not in metrics and value is not None and len({row[key] for row in rows}) > 1
    )
    number = _number(metric, float(best[metric]))
    return f"{len(rows)} rows; the best {metric} is {number}" + (f": {where}." if where else ".")


def _number(name: str, value: float) -> str:
    if name.endswith("_ns"):
        return units.duration(value)
    return units.size(value) if name.endswith("_bytes") else units.digits(value, 4)


def _column(name: str, rows: Sequence[Row], metric: bool) -> Mapping[str, object]:
    """A column as the page holds it: numbers, or texts numbered by the order they come in."""
    values = [row[name] for row in rows]
    if all(isinstance(v, int | float) and not isinstance(v, bool) or v is None for v in values):
        short = [None if v is None else v if isinstance(v, int) else _short(v) for v in values]
        return {"name": name, "metric": metric, "numeric": True, "values": short}
    texts = list(dict.fromkeys(_text(value) for value in values))
    places = {text: place for place, text in enumerate(texts)}
    codes = [places[_text(value)] for value in values]
    return {"name": name, "metric": metric, "numeric": False, "texts": texts, "values": codes}


def _short(value: float) -> float | None:
    """Seven digits: what a chart can show, and a third of the bytes."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _fitting(
    rows: list[Row], keys: Sequence[str], metrics: Mapping[str, str], seed: str | None
) -> tuple[list[Row], str]:
    """Rows that fit in a page, and what was done for that."""

    def size(some: Sequence[Row]) -> int:
        columns = [_column(name, some, name in metrics) for name in (*keys, *metrics)]
        return len(json.dumps(columns, separators=(",", ":")))

    if size(rows) <= MAX_CHARACTERS:
        return rows, ""
    note = ""
    if seed in keys:
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            groups.setdefault(tuple(row[key] for key in keys if key != seed), []).append(row)
        rows = [_mean(group, metrics, str(seed)) for group in groups.values()]
        note = f"Means over {seed}: the single rows are in the folder. "
        if size(rows) <= MAX_CHARACTERS:
            return rows, note
    step = math.ceil(size(rows) / MAX_CHARACTERS)
    some = rows[::step]
    while size(some) > MAX_CHARACTERS and len(some) > 1:
        step += 1
        some = rows[::step]
    return some, f"{note}{len(some)} of {len(rows)} rows, every {step}th: all are in the folder."


def _mean(group: Sequence[Row], metrics: Mapping[str, str], seed: str) -> Row:
    row = {**group[0], seed: None}
    for name in metrics:
        known = [float(one[name]) for one in group if one[name] is not None]
        row[name] = math.fsum(known) / len(known) if known else None
    return row


def _differences(
    rows: Sequence[Row], keys: Sequence[str], metrics: Mapping[str, str], apart: set[str]
) -> list[Row]:
    """Every column of few levels, every number: texts ready to show."""
    found: list[Row] = []
    for by in keys:
        if not 1 < len({row[by] for row in rows}) <= _LEVELS:
            continue
        for metric, better in metrics.items():
            listed = across(rows, by, keys, metric, better)
            if listed:
                shown = [_cells(by, one, by in apart) for one in listed]
                found.append({"by": by, "of": metric, "rows": shown})
    return found


def _cells(by: str, one: Level, apart: bool) -> list[str]:
    def level(value: object) -> str:
        sized = by.endswith("_bytes") and isinstance(value, int)
        return units.size(value) if sized else _text(value)  # type: ignore[arg-type]

    known = one["low"] is not None
    interval = f"{signed(one['low'])} to {signed(one['high'])}" if known else "-"
    change = signed(one["relative"])
    texts = [level(one["level"]), level(one["base"]), str(one["pairs"]), change, interval]
    verdict = "other trace" if apart else one["verdict"]
    return [*(page.typeset(units.clean(text)) for text in texts), verdict]


def _first_x(keys: Sequence[str], rows: Sequence[Row]) -> str:
    """The column to begin with: a size if there is one, else what has most levels."""
    sizes = [key for key in keys if key.endswith("_bytes")]
    return sizes[0] if sizes else max(keys, key=lambda key: len({row[key] for row in rows}))


def _spec() -> charts.Spec:
    """Means with minimum and maximum; the script sets the types, titles and labels of the axes."""
    import altair as alt

    legend = alt.Legend(title=None, orient="top", columns=4)
    colour = alt.Color("c:N", legend=legend)
    x = alt.X("x:Q", axis=alt.Axis(title="x", labelOverlap="greedy", labelSeparation=6))
    base = alt.Chart(alt.NamedData("points"))
    line = base.mark_line(strokeWidth=2).encode(x=x, y=alt.Y("y:Q"), color=colour)
    spread = base.mark_rule(opacity=0.5).encode(
        x=x, y=alt.Y("least:Q", axis=alt.Axis(title="y", tickCount=6)), y2="most:Q", color=colour
    )
    tips = ["x_label", "c", "y_label", "rows"]
    points = base.mark_point(size=50, filled=True, opacity=0.95).encode(
        x=x,
        y=alt.Y("y:Q"),
        color=colour,
        shape=alt.Shape("c:N", legend=legend),
        tooltip=[alt.Tooltip(f"{name}:N", title=name.removesuffix("_label")) for name in tips],
    )
    return charts.finish(alt.layer(line, spread, points), 340)
