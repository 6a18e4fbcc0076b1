"""The first picture of a paging study: how much longer it takes with less memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nearfar import paging_answers as answers
from nearfar import units
from nearfar.report.html import charts, page

#: Ticks of the axis of memory sizes, about.
_TICKS: Final = 6


def drawn(curves: Sequence[answers.MemoryCurve], slowdown: float) -> charts.Drawn:
    """The chart, with marks where the first storage has enough memory and where it thrashes.

    Data sets: ``points`` (``bytes``, ``value``, ``storage``, labels), and ``marks`` (``bytes``,
    ``place``, ``text``).
    """
    first = curves[0]
    marks = [(first.enough(slowdown), f"within {units.percent(slowdown)}")]
    if first.thrashes_below is not None and first.thrashes_below != marks[0][0]:
        marks.append((first.thrashes_below, "thrashes below"))
    points: list[charts.Datum] = [
        {
            "bytes": memory.bytes,
            "value": page.number(1 + slower),
            "storage": curve.storage,
            "memory_label": page.typeset(units.size(memory.bytes)),
            "value_label": page.typeset(f"{units.digits(1 + slower)} times"),
        }
        for curve in curves
        for memory, slower in curve.slowdowns
    ]
    rules: list[charts.Datum] = [
        {
            "bytes": memory.bytes,
            "place": place,
            "text": page.typeset(f"{text}|{units.size(memory.bytes)}"),
        }
        for place, (memory, text) in enumerate(marks)
    ]
    most = max(1 + slower for curve in curves for _, slower in curve.slowdowns)
    return {"spec": _spec(curves, most), "points": points, "marks": rules}


def section(curves: Sequence[answers.MemoryCurve]) -> str:
    """The section of the page, which the script fills."""
    whole = units.size(curves[0].whole.bytes)
    label = f"Time against memory size, as a multiple of that with {whole}"
    pages = units.size(curves[0].page_bytes)
    caption = f"With pages of {pages}; 1 is the time with {whole}."
    if len(curves) > 1:
        caption += f" Dashed lines: on {curves[0].storage}."
    body = page.chart("enough", label, caption)
    return page.section("enough", "How much memory", body, wide=True)


def _spec(curves: Sequence[answers.MemoryCurve], most: float) -> charts.Spec:
    import altair as alt

    whole = curves[0].whole.bytes
    x = alt.X(
        "bytes:Q",
        scale=alt.Scale(domain=[0, whole], nice=False),
        axis=alt.Axis(
            title="memory",
            values=ticks(whole),
            labelExpr=charts.SIZE_LABEL,
            labelOverlap="parity",
            labelSeparation=8,
            grid=False,
        ),
    )
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(type="log", domain=[1, max(2.0, most)], nice=False, padding=8),
        axis=alt.Axis(title="times as long", format="~g", tickCount=5),
    )
    names = [curve.storage for curve in curves]
    legend = alt.Legend(title=None, orient="top") if len(names) > 1 else None
    colour = alt.Color("storage:N", scale=alt.Scale(domain=names), legend=legend)
    points = alt.Chart(alt.NamedData("points"))
    line = points.mark_line(strokeWidth=2, interpolate="monotone").encode(x=x, y=y, color=colour)
    dots = points.mark_point(size=50, filled=True, opacity=0.95).encode(
        x=x,
        y=y,
        color=colour,
        tooltip=[
            alt.Tooltip("memory_label:N", title="memory"),
            alt.Tooltip("value_label:N", title="takes"),
            *([alt.Tooltip("storage:N", title="storage")] if len(names) > 1 else []),
        ],
    )
    return charts.finish(charts.marked(alt, x, f"datum.bytes > {whole / 2}", 8, line, dots), 260)


def ticks(whole: int) -> list[int]:
    """Sizes from 0 to ``whole``, whole multiples of a power of two.

    >>> ticks(100 << 20) == [0, 16 << 20, 32 << 20, 48 << 20, 64 << 20, 80 << 20, 96 << 20]
    True
    """
    step = 1
    while whole / step > _TICKS + 1:
        step *= 2
    return list(range(0, whole + 1, step))
