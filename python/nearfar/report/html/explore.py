"""The page of several runs, or of a sweep: rows to filter, axes to choose, paired differences."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from nearfar.diff import across, flat
from nearfar.errors import NearfarError
from nearfar.report import units
from nearfar.report.diff import signed
from nearfar.report.html import charts, page
from nearfar.runs import Run

Row = dict[str, Any]

#: Characters of data in a page; with the charting library it stays under 3 MB.
MOST: Final = 1_800_000
#: Levels of a column that can be chosen from, drawn as colours, compared.
_CHOICES, _COLOURS, _LEVELS = 60, 12, 12
#: What a number is, by the end of its column's name: the label of an axis.
_LABELS: Final = {
    "_bytes": charts.SIZE_LABEL,
    "_ns": charts.TIME_LABEL,
}


def explore_page(runs: Sequence[Run]) -> str:
    """Runs of one study as one HTML file.

    Args:
        runs: one sweep or run, or several; their names tell them apart.

    Returns:
        The page's text, to be written as UTF-8.

    Raises:
        NearfarError: there are no rows.
    """
    rows, keys, names = _rows(runs)
    if not rows:
        raise NearfarError(f"{runs[0].path}: has no rows to draw")
    metrics = dict(runs[0].columns.metrics)
    varying = [key for key in keys if len({row[key] for row in rows}) > 1]
    constant = {key: rows[0][key] for key in keys if key not in varying}
    metrics = {
        name: better
        for name, better in metrics.items()
        if any(row[name] is not None for row in rows)
    }
    if not metrics:
        raise NearfarError(f"{runs[0].path}: has no numbers to draw")
    varying = varying or keys[:1]
    differences = _differences(rows, varying, metrics)
    seed = runs[0].columns.seed
    shown, left_out = _fitting(rows, varying, metrics, seed)
    columns = [_column(name, shown, name in metrics) for name in (*varying, *metrics)]
    model = {
        "charts": {"explore": {"spec": _spec()}},
        "metrics": metrics,
        "differences": differences,
        "limits": {"choices": _CHOICES, "colours": _COLOURS},
        "axes": _LABELS,
        "x": _first_x([k for k in varying if k != seed] or varying, shown),
    }
    what = "a sweep of" if len(runs) == 1 and runs[0].is_sweep else "runs of"
    heading = f"{page.text(', '.join(names))}: {what} <code>{runs[0].study.name}</code>"
    return page.build(
        title=f"{', '.join(names)} - nearfar",
        kicker=f"nearfar: report of {runs[0].study.name}",
        heading=heading,
        lead=f'<p class="finding" id="finding">{page.text(page.nice(_finding(rows, metrics)))}</p>',
        body="\n".join(_sections(runs, names, metrics, differences, constant, left_out)),
        data={
            "result": {"runs": [_made(run) for run in runs], "columns": columns},
            "model": model,
        },
        scripts=["common.js", "explore.js"],
    )


def _sections(
    runs: Sequence[Run],
    names: Sequence[str],
    metrics: Mapping[str, str],
    differences: Sequence[Row],
    constant: Mapping[str, Any],
    left_out: str,
) -> Iterable[str]:
    filters = (
        '<div id="filters" class="checks"></div>'
        '<p><label for="search">Rows that contain</label> <input id="search" type="search"></p>'
    )
    note = f'<p class="note">{page.text(left_out)}</p>' if left_out else ""
    yield page.section("filter", "Rows", note + filters + _status("count"), wide=True)
    picks = "".join(_pick(name, title) for name, title in _PICKS)
    log = '<label class="check"><input type="checkbox" id="log"> logarithmic</label>'
    yield page.section(
        "explore",
        "Chart",
        f'<div class="checks">{picks}{log}</div>'
        + page.chart(
            "explore",
            "The chosen number against the chosen column",
            "Points: means of the rows above with the same x and colour; bars: least to most.",
        ),
        wide=True,
    )
    if differences:
        body = f'<div class="checks">{_pick("by", "column")}{_pick("of", "number")}</div>'
        told = (
            "Rows alike in everything else are paired; the mean relative difference to the first "
            "level, with its 95 % confidence interval (Student's t over the pairs)."
        )
        body += f'<p>{page.text(page.nice(told))}</p><div id="differences-table"></div>'
        yield page.section("differences", "Paired differences", body, wide=True)
    yield page.section(
        "table",
        "The rows",
        f'<div class="checks">{_pick("sort", "order")}</div><div id="rows-table"></div>',
        wide=True,
    )
    if constant:
        same = page.definitions((key, page.text(_text(v))) for key, v in constant.items())
        yield page.section("constant", "The same in every row", same)
    better = page.definitions(
        (name, f"{page.text(less)} is better") for name, less in metrics.items()
    )
    yield page.section("metrics", "Numbers", better)
    facts = "".join(
        f"<h3>{page.text(name)}</h3>{page.run_facts(_made(run))}"
        for name, run in zip(names, runs, strict=True)
    )
    yield page.section("run", "How this was made", facts + page.downloads(csv=True), wide=True)


_PICKS: Final = (("x", "x"), ("y", "y"), ("colour", "colour"))


def _pick(name: str, title: str) -> str:
    return f'<label class="check">{title} <select id="pick-{name}"></select></label>'


def _status(name: str) -> str:
    return f'<p class="overall" id="{name}" aria-live="polite"></p>'


def _text(value: object) -> str:
    return "-" if value is None else str(value)


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
    for row in rows:
        for key in keys:
            row.setdefault(key, None)
    return rows, list(keys), names


def _made(run: Run) -> dict[str, Any]:
    """How a run was made, without the machine's pages of numbers."""
    made: Mapping[str, Any] = getattr(run.result, "run", {})
    left = ("machine_description", "machines", "fits", "details")
    return {"folder": run.name, **{k: v for k, v in made.items() if k not in left}}


def _finding(rows: Sequence[Row], metrics: Mapping[str, str]) -> str:
    """One sentence: the best row by the first number."""
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


def _column(name: str, rows: Sequence[Row], metric: bool) -> dict[str, Any]:
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

    if size(rows) <= MOST:
        return rows, ""
    told = ""
    if seed in keys:
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            groups.setdefault(tuple(row[key] for key in keys if key != seed), []).append(row)
        rows = [_mean(group, metrics, str(seed)) for group in groups.values()]
        told = f"Means over {seed}: the single rows are in the folder. "
        if size(rows) <= MOST:
            return rows, told
    step = math.ceil(size(rows) / MOST)
    some = rows[::step]
    while size(some) > MOST and len(some) > 1:
        step += 1
        some = rows[::step]
    return some, f"{told}{len(some)} of {len(rows)} rows, every {step}th: all are in the folder."


def _mean(group: Sequence[Row], metrics: Mapping[str, str], seed: str) -> Row:
    row = {**group[0], seed: None}
    for name in metrics:
        known = [float(one[name]) for one in group if one[name] is not None]
        row[name] = math.fsum(known) / len(known) if known else None
    return row


def _differences(rows: Sequence[Row], keys: Sequence[str], metrics: Mapping[str, str]) -> list[Row]:
    """Every column of few levels, every number: texts ready to show."""
    found = []
    for by in keys:
        if not 1 < len({row[by] for row in rows}) <= _LEVELS:
            continue
        for metric, better in metrics.items():
            listed = across(rows, by, keys, metric, better)
            if listed:
                found.append({"by": by, "of": metric, "rows": [_told(by, one) for one in listed]})
    return found


def _told(by: str, one: Row) -> list[str]:
    def level(value: object) -> str:
        sized = by.endswith("_bytes") and isinstance(value, int)
        return units.size(value) if sized else _text(value)  # type: ignore[arg-type]

    known = one["low"] is not None
    interval = f"{signed(one['low'])} to {signed(one['high'])}" if known else "-"
    change = signed(one["relative"])
    texts = [level(one["level"]), level(one["base"]), str(one["pairs"]), change, interval]
    return [*(page.nice(units.clean(text)) for text in texts), one["verdict"]]


def _first_x(keys: Sequence[str], rows: Sequence[Row]) -> str:
    """The column to begin with: a size if there is one, else what has most levels."""
    sizes = [key for key in keys if key.endswith("_bytes")]
    return sizes[0] if sizes else max(keys, key=lambda key: len({row[key] for row in rows}))


def _spec() -> dict[str, Any]:
    """Means with least and most; the script sets the types, titles and labels of the axes."""
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
    return charts._finish(alt.layer(line, spread, points), 340)  # noqa: SLF001
