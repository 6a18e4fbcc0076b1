"""Vega-Lite specifications, made with Altair, without data: the page's script adds the data.

Colours, fonts and widths come from the page (light or dark), so a specification describes only what
the chart shows. Fields ending in ``_label`` are texts made in Python and shown in tooltips.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Required, TypeAlias, TypedDict

from nearfar.declared import advise as advise_declared
from nearfar.declared import info as info_declared
from nearfar.declared import paging as paging_declared
from nearfar.report import palette

if TYPE_CHECKING:
    import altair as alt

    AnyChart: TypeAlias = alt.Chart | alt.LayerChart | alt.FacetChart

#: A specification of Vega-Lite: JSON.
Spec: TypeAlias = dict[str, Any]
#: A row of a chart's data.
Datum = Mapping[str, str | float | None]


class Drawn(TypedDict, total=False):
    """A chart of a page: its specification, and the data that the script adds to it."""

    spec: Required[Spec]
    points: Sequence[Datum]
    curves: Sequence[Datum]
    bars: Sequence[Datum]
    boxes: Sequence[Datum]
    marks: Sequence[Datum]
    #: The number of series, and the heads of a table of the data, for scripts that need them.
    series: int
    heads: Sequence[str]


SIZE_LABEL = (
    "datum.value >= 1073741824 ? format(datum.value / 1073741824, '.3~r') + ' GiB' : "
    "datum.value >= 1048576 ? format(datum.value / 1048576, '.3~r') + ' MiB' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '.3~r') + ' KiB' : datum.value + ' B'"
)


def size_ticks(largest: float) -> list[int]:
    """About six ticks of an axis from 0 to ``largest`` bytes, at multiples of a power of two."""
    step = 1
    while step * 6 < largest:
        step *= 2
    return list(range(0, int(largest) + step, step))


def size_axis(title: str, largest: float) -> alt.Axis:
    """An axis from 0 to ``largest`` bytes."""
    import altair as alt

    return alt.Axis(title=title, labelExpr=SIZE_LABEL, values=size_ticks(largest))


def tooltips(**titles: str) -> list[alt.Tooltip]:
    """Text fields of a tooltip, with their titles; an empty title is the field's name."""
    import altair as alt

    return [
        alt.Tooltip(f"{field}:N", title=title or alt.Undefined) for field, title in titles.items()
    ]


TIME_LABEL = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, '~g') + ' s' : "
    "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' ms' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' µs' : "
    "format(datum.value, '~g') + ' ns'"
)
#: A region's label, shortened to the file name of a path or to an address.
_TAIL_LABEL = (
    "replace(replace(datum.label, regexp('^(page cache: )?/.*/(?=.)'), '$1'), '(anonymous) ', '')"
)
RATE_LABEL = "format(datum.value, '~g')"
COUNT_LABEL = "format(datum.value, '~s')"


def rates(pages: Sequence[int], series: int, axis: str, memory: bool) -> Spec:
    """A rate against page size: fitted curves, and simulated or measured points on top of them.

    Data sets: ``points`` (``page``, ``value``, ``series``, labels) and ``curves`` (``page``,
    ``value``, ``series``, and ``verdict`` on the fit: good, fair or bad). Their ``series`` is the
    index of the memory size.

    Args:
        pages: page sizes, in bytes.
        series: the number of memory sizes.
        axis: title of the axis of the rate.
        memory: whether tooltips show the memory size.
    """
    import altair as alt

    keys = [str(i) for i in range(series)]
    x = _page_axis(pages)
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=alt.Axis(title=axis, format="~g", labelOverlap="greedy", tickCount=6),
    )
    colour = alt.Color("series:O", scale=alt.Scale(domain=keys), legend=None)
    verdicts = list(palette.DASHES)
    data = alt.Chart(alt.NamedData("curves"))
    curves = data.mark_line(strokeWidth=2, interpolate="monotone", clip=True).encode(
        x=x,
        y=y,
        color=colour,
        strokeDash=alt.StrokeDash(
            "verdict:N",
            scale=alt.Scale(domain=verdicts, range=[list(palette.DASHES[v]) for v in verdicts]),
            legend=None,
        ),
        detail="series:O",
    )
    of_memory = {"series_label": "memory"} if memory else {}
    tooltip = tooltips(
        page_label="page size", **of_memory, value_label="simulated", fitted_label="fitted"
    )
    points = _series_points(keys, None, x=x, y=y, color=colour, tooltip=tooltip)
    return finish(alt.layer(curves, points), 320)


def _series_points(names: Sequence[str], legend: alt.Legend | None, **encoding: Any) -> AnyChart:
    """The layer of the data set ``points``, with a shape for each series."""
    import altair as alt

    scale = alt.Scale(domain=list(names), range=palette.cycled(palette.SHAPES, len(names)))
    # Nominal, because Vega-Lite warns about ordinal shapes.
    shape = alt.Shape("series:N", scale=scale, legend=legend)
    marks = alt.Chart(alt.NamedData("points")).mark_point(
        size=50, filled=True, opacity=0.95, clip=True
    )
    points: AnyChart = marks.encode(shape=shape, **encoding)
    return points


def times(
    pages: Sequence[str], heads: Mapping[str, str], colours: Sequence[str] | None = None
) -> Spec:
    """Time per reference against page size, its parts stacked, the best page marked.

    Data sets: ``bars`` (``label``, ``part``, ``order``, ``value``, ``best``, labels), a row for
    each page and part, and ``best`` (``label``, ``total``, ``text``), one row.

    Args:
        pages: page sizes, as shown.
        heads: the columns of the parts, from the bottom of a bar, and their heads.
        colours: the colours of the parts; by default those of the HTML page's theme.
    """
    import altair as alt

    x = alt.X(
        "label:O",
        sort=list(pages),
        scale=alt.Scale(domain=list(pages), paddingInner=0.25),
        axis=alt.Axis(title="page size", labelAngle=0, labelOverlap="parity", labelSeparation=4),
    )
    y_axis = alt.Axis(title="time per reference", labelExpr=TIME_LABEL, tickCount=6)
    scale = alt.Scale(domain=list(heads.values()))
    if colours is not None:
        scale.range = list(colours)
    data = alt.Chart(alt.NamedData("bars"))
    bars = data.mark_bar(clip=True).encode(
        x=x,
        y=alt.Y("value:Q", stack="zero", scale=alt.Scale(zero=True), axis=y_axis),
        color=alt.Color("part:N", scale=scale, legend=None),
        opacity=alt.condition("datum.best", alt.value(1), alt.value(0.55)),
        order=alt.Order("order:Q"),
        tooltip=tooltips(
            label="page size",
            **{f"{name}_label": head for name, head in heads.items()},
            total_ns_label=paging_declared.ROWS.head("total_ns"),
            versus_label="vs 4 KiB",
        ),
    )
    best = alt.Chart(alt.NamedData("best"))
    line = best.mark_rule(strokeDash=[4, 4], strokeWidth=1).encode(y="total:Q")
    star = best.mark_text(dy=-10, fontWeight="bold", fontSize=13).encode(
        x=x, y="total:Q", text="text:N"
    )
    return finish(alt.layer(bars, line, star), 320)


def advice(pages: Sequence[int]) -> Spec:
    """Time per reference against page size: a predicted line, simulated points, marked sizes.

    Data sets: ``curve`` (``page``, ``predicted``, ``simulated``, ``fitted``, labels) and ``marks``
    (``page``, ``place``, ``text``: see :func:`marked`).
    """
    import altair as alt

    x = _page_axis(pages)
    axis = alt.Axis(
        title="time per reference",
        labelExpr=TIME_LABEL,
        labelOverlap="greedy",
        labelSeparation=4,
        tickCount=6,
    )
    scale = alt.Scale(type="log", nice=False, padding=14)
    curve = alt.Chart(alt.NamedData("curve"))
    line = curve.mark_line(strokeWidth=2, clip=True).encode(
        x=x, y=alt.Y("predicted:Q", scale=scale, axis=axis)
    )
    points = curve.mark_point(size=60, filled=True, opacity=0.95, clip=True).encode(
        x=x,
        y=alt.Y("simulated:Q", scale=scale, axis=axis),
        shape=alt.Shape(
            "fitted:N",
            scale=alt.Scale(domain=["fitted size", "other size"], range=["circle", "cross"]),
            legend=None,
        ),
        color=alt.value("#d55e00"),
        tooltip=tooltips(
            page_label="page size",
            predicted_label=advise_declared.CURVE_ROWS.head("predicted_ns"),
            simulated_label=advise_declared.CURVE_ROWS.head("simulated_ns"),
            translation_label="translation, simulated",
            data_label="data, simulated",
            fitted="kind of size",
        ),
    )
    right_third = f"datum.page > {sorted(pages)[len(pages) * 2 // 3]}"
    # The height is divided into 20 rows for the names of marks.
    return finish(marked(x, right_third, 20, line, points), 320)


def marked(x: alt.X, late: str, places: int, *layers: AnyChart) -> AnyChart:
    """The layers, with a named vertical line at each size of the data set ``marks``.

    Names are in ``places`` rows, so that they do not overlap: ``place`` is the row, 0 at the top. A
    name is to the left of its line if the Vega expression ``late`` is true, otherwise to the right.
    """
    import altair as alt

    marks = alt.Chart(alt.NamedData("marks"))
    rule = marks.mark_rule(strokeDash=[4, 4], strokeWidth=1).encode(x=x)
    name = marks.mark_text(
        align={"expr": f"{late} ? 'right' : 'left'"},
        dx={"expr": f"{late} ? -4 : 4"},
        fontWeight="bold",
        baseline="top",
        lineBreak="|",
    ).encode(
        x=x,
        y=alt.Y("place:Q", scale=alt.Scale(domain=[places, 0], nice=False), axis=None),
        text="text:N",
    )
    chart: AnyChart = alt.layer(alt.layer(rule, *layers), name).resolve_scale(y="independent")
    return chart


def published(pages: Sequence[int], names: Sequence[str], axis: str, time: bool) -> Spec:
    """Curves of a paper's figure: a value against page size, a colour and shape for each series.

    Data sets: ``points`` and ``curves`` (``page``, ``value``, ``series``, labels). Values are
    nanoseconds if ``time``.
    """
    import altair as alt

    x = _page_axis(pages)
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=alt.Axis(
            title=axis,
            labelOverlap="greedy",
            tickCount=6,
            labelExpr=TIME_LABEL if time else RATE_LABEL,
        ),
    )
    legend = alt.Legend(title=None, orient="top")
    colour = alt.Color("series:N", scale=alt.Scale(domain=list(names)), legend=legend)
    data = alt.Chart(alt.NamedData("curves"))
    curves = data.mark_line(strokeWidth=2, clip=True).encode(x=x, y=y, color=colour)
    tooltip = tooltips(series="curve", page_label="page size", value_label="simulated")
    points = _series_points(names, legend, x=x, y=y, color=colour, tooltip=tooltip)
    return finish(alt.layer(curves, points), 320)


def over_time(largest: int, title: str) -> Spec:
    """Bytes over time, at most ``largest``; ``title`` names the axis.

    Data set: ``points`` (``record``, ``bytes``, labels).
    """
    import altair as alt

    record = info_declared.WORKING_SET_ROWS.head("record")
    data = alt.Chart(alt.NamedData("points"))
    chart = data.mark_area(
        line={"strokeWidth": 2}, fillOpacity=0.25, interpolate="step-after"
    ).encode(
        x=alt.X(
            "record:Q",
            scale=alt.Scale(nice=False),
            axis=alt.Axis(
                title=record,
                labelExpr=COUNT_LABEL,
                labelOverlap="greedy",
                labelSeparation=8,
                tickCount=5,
            ),
        ),
        y=alt.Y("bytes:Q", axis=size_axis(title, largest)),
        tooltip=tooltips(record_label=record, bytes_label=title),
    )
    return finish(chart, 260)


def reuse(labels: Sequence[str]) -> Spec:
    """References by reuse distance. Data set: ``points`` (``label``, ``count``, labels)."""
    import altair as alt

    distance, count = info_declared.REUSE_ROWS.heads("distance_log2", "count")
    data = alt.Chart(alt.NamedData("points"))
    chart = data.mark_bar().encode(
        x=alt.X(
            "label:O",
            sort=list(labels),
            axis=alt.Axis(title="distinct pages between two uses", labelAngle=-40),
        ),
        y=alt.Y("count:Q", axis=alt.Axis(title=count, labelExpr=COUNT_LABEL)),
        tooltip=tooltips(label=distance, count_label=count, share_label="share"),
    )
    return finish(chart, 260)


def regions(names: Sequence[str], parts: Sequence[str]) -> Spec:
    """References by region and kind, stacked; regions in the order of ``names``.

    Data set: ``bars`` (``name``, ``part``, ``order``, ``count``, labels).
    """
    import altair as alt

    data = alt.Chart(alt.NamedData("bars"))
    chart = data.mark_bar().encode(
        y=alt.Y(
            "name:N",
            sort=list(names),
            axis=alt.Axis(title=None, labelLimit=150, labelExpr=_TAIL_LABEL),
        ),
        x=alt.X(
            "count:Q",
            stack="zero",
            axis=alt.Axis(
                title="references", labelExpr=COUNT_LABEL, labelOverlap="greedy", tickCount=5
            ),
        ),
        color=alt.Color("part:N", scale=alt.Scale(domain=list(parts)), legend=None),
        order=alt.Order("order:Q"),
        tooltip=tooltips(name="region", part="kind", count_label="references"),
    )
    return finish(chart, max(120, 30 * len(names) + 40))


def _page_axis(pages: Sequence[int]) -> alt.X:
    import altair as alt

    return alt.X(
        "page:Q",
        scale=alt.Scale(type="log", base=2, domain=[min(pages), max(pages)], padding=12),
        axis=alt.Axis(
            title="page size",
            values=list(pages),
            labelExpr=SIZE_LABEL,
            labelOverlap="parity",
            labelSeparation=4,
            grid=False,
        ),
    )


def finish(chart: AnyChart, height: int) -> Spec:
    """The specification of a chart of this height in pixels, as wide as its container."""
    spec: Spec = chart.properties(width="container", height=height).to_dict()
    # The page sets the theme, and names the language ("vega-lite") instead of a schema URL.
    spec.pop("config", None)
    spec.pop("$schema", None)
    spec["autosize"] = {"type": "fit-x", "contains": "padding"}
    return spec
