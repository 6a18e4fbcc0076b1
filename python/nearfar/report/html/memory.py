"""The first chart of a study: how much longer a program takes with less memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from nearfar import units
from nearfar.memory_curve import MemoryCurve
from nearfar.report.html import charts, page

if TYPE_CHECKING:
    import altair as alt

#: The approximate number of ticks of the axis of memory sizes.
_TICKS: Final = 6


class Words(NamedTuple):
    """Names in a chart.

    Attributes:
        of: what a curve stands for.
        memory: the kind of memory.
    """

    of: str
    memory: str


STORAGES: Final = Words("storage", "memory")
POLICIES: Final = Words("policy", "fast memory")


def drawn(
    curves: Sequence[MemoryCurve], slowdown: float, words: Words, colour: alt.Color | None = None
) -> charts.Drawn:
    """The chart, with marks where the first curve has enough memory and where it thrashes.

    Data sets: ``points`` (``bytes``, ``value``, the name of the curve, labels), and ``marks``
    (``bytes``, ``place``: row of the text, 0 at the top, ``text``). ``colour`` replaces the
    default encoding.
    """
    first = curves[0]
    marked = {first.enough(slowdown): f"within {units.percent(slowdown)}"}
    marked.setdefault(first.thrashes_below, "thrashes below")
    points: list[charts.Datum] = [
        {
            "bytes": memory.bytes,
            "value": page.number(1 + slower),
            words.of: curve.name,
            "memory_label": page.typeset(units.size(memory.bytes)),
            "value_label": page.typeset(f"{units.digits(1 + slower)} times"),
        }
        for curve in curves
        for memory, slower in curve.slowdowns
    ]
    marks: list[charts.Datum] = [
        {
            "bytes": memory.bytes,
            "place": index,
            "text": page.typeset(f"{text}|{units.size(memory.bytes)}"),
        }
        for index, (memory, text) in enumerate(marked.items())
        if memory is not None
    ]
    times = [1 + slower for curve in curves for _, slower in curve.slowdowns]
    domain = (min(1.0, *times), max(2.0, *times))
    return {"spec": _spec(curves, domain, words, colour), "points": points, "marks": marks}


def section(curves: Sequence[MemoryCurve], title: str, caption: str) -> str:
    """The section for the chart, which the page's script draws."""
    most = units.size(curves[0].whole.bytes)
    label = f"Time against memory size, as a multiple of that with {most}"
    return page.section("enough", title, page.chart("enough", label, caption), wide=True)


def _spec(
    curves: Sequence[MemoryCurve],
    domain: tuple[float, float],
    words: Words,
    colour: alt.Color | None,
) -> charts.Spec:
    import altair as alt

    most = curves[0].whole.bytes
    x = alt.X(
        "bytes:Q",
        scale=alt.Scale(domain=[0, most], nice=False),
        axis=alt.Axis(
            title=words.memory,
            values=ticks(most),
            labelExpr=charts.SIZE_LABEL,
            labelOverlap="parity",
            labelSeparation=8,
            grid=False,
        ),
    )
    y = alt.Y(
        "value:Q",
        scale=alt.Scale(type="log", domain=list(domain), nice=False, padding=8),
        axis=alt.Axis(title="times as long", format="~g", tickCount=5),
    )
    names = [curve.name for curve in curves]
    # One column if a single row (0 columns) is too wide for a phone; a letter takes about 7 pixels.
    columns = 0 if sum(7 * len(name) + 30 for name in names) < 300 else 1
    several = len(names) > 1
    legend = alt.Legend(title=None, orient="top", columns=columns) if several else None
    if colour is None:
        colour = alt.Color(f"{words.of}:N", scale=alt.Scale(domain=names), legend=legend)
    points = alt.Chart(alt.NamedData("points"))
    line = points.mark_line(strokeWidth=2, interpolate="monotone").encode(x=x, y=y, color=colour)
    dots = points.mark_point(size=50, filled=True, opacity=0.95).encode(
        x=x,
        y=y,
        color=colour,
        tooltip=charts.tooltips(
            memory_label=words.memory,
            value_label="takes",
            **({words.of: words.of} if several else {}),
        ),
    )
    # Names of the two marks are in the upper two of 8 rows.
    return charts.finish(charts.marked(x, f"datum.bytes > {most / 2}", 8, line, dots), 260)


def ticks(most: int) -> list[int]:
    """Sizes from 0 to ``most``, multiples of a power of two.

    >>> ticks(100 << 20) == [0, 16 << 20, 32 << 20, 48 << 20, 64 << 20, 80 << 20, 96 << 20]
    True
    """
    step = 1
    while most / step > _TICKS + 1:
        step *= 2
    return list(range(0, most + 1, step))
