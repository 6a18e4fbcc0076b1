"""Charts of results for notebooks, as ``altair.Chart``: the first chart of each study's page.

One file per study with ``draw(result)``, which the result names (``Result.chart``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from nearfar.errors import NearfarError
from nearfar.report import palette
from nearfar.report.html.charts import Datum, Spec, finish

if TYPE_CHECKING:
    import altair as alt

Chart: TypeAlias = "alt.Chart"
T = TypeVar("T")

WIDTH = 560
"""Width of a chart in pixels; on a page, a chart is as wide as its container."""


def chart(spec: Spec, title: str, **data: Sequence[Datum]) -> Chart:
    """A page's specification with its data: a chart that can be shown alone.

    Args:
        spec: the result of a function of :mod:`nearfar.report.html.charts`.
        title: of the chart, plain text; lines after the first are smaller.
        data: rows by the name of their data set in the specification.

    Raises:
        NearfarError: there are no rows.
    """
    import altair as alt

    if not any(data.values()):
        raise NearfarError("plot: the result has no rows to draw")
    first, *more = title.splitlines()
    heading = {"text": first, "subtitle": more, "limit": WIDTH + 120}
    colours = {"category": list(palette.OKABE_ITO.values()), "ordinal": {"scheme": "viridis"}}
    frame = {"width": WIDTH, "title": heading, "datasets": data, "autosize": "pad"}
    return alt.Chart.from_dict({**spec, **frame, "config": {"range": colours}})


def legend(spec: Spec, field: str, **keys: object) -> None:
    """Add a legend to a page's specification; the page itself explains its colours elsewhere.

    Args:
        spec: the specification, or a layer of it; it is changed.
        field: the field that colours stand for.
        keys: keys of Vega-Lite's legend.
    """
    for layer in spec.get("layer", ()):
        legend(layer, field, **keys)
    colour = spec.get("encoding", {}).get("color", {})
    if colour.get("field") == field:
        colour["legend"] = {"title": None, "orient": "top", **keys}


#: The maximum number of categories along an axis whose labels are legible.
MAX_CATEGORIES = 24


def limit(items: Sequence[T]) -> tuple[Sequence[T], str]:
    """As many items as fit on an axis, and a note for the title if some are left out."""
    note = f" ({MAX_CATEGORIES} of {len(items)})" if len(items) > MAX_CATEGORIES else ""
    return items[:MAX_CATEGORIES], note


def bars(rows: Sequence[Datum], title: str, *, x: str, series: str, axis: str, label: str) -> Chart:
    """Grouped bars: the ``value`` of each row, by ``x`` and ``series``.

    Args:
        rows: mappings of ``value`` and of the keys named by ``x`` and ``series``, which are texts.
        title: of the chart.
        x: key of the categories along the axis, in the order of the rows.
        series: key of the bars of one category, each in a colour.
        axis: title of the axis of ``value``, with its unit.
        label: Vega expression of a tick, as in :mod:`nearfar.report.html.charts`.
    """
    import altair as alt

    order = list(dict.fromkeys(str(row[x]) for row in rows))
    names = list(dict.fromkeys(str(row[series]) for row in rows))
    # Turn labels that would overlap; a letter takes about 6 pixels.
    turned = sum(6 * len(category) + 12 for category in order) > WIDTH
    data = alt.Chart(alt.NamedData("bars"))
    drawn = data.mark_bar().encode(
        x=alt.X(f"{x}:N", sort=order, axis=alt.Axis(labelAngle=-40 if turned else 0)),
        xOffset=alt.XOffset(f"{series}:N", sort=names),
        y=alt.Y("value:Q", axis=alt.Axis(title=axis, labelExpr=label, tickCount=6)),
        color=alt.Color(f"{series}:N", scale=alt.Scale(domain=names)),
        tooltip=[f"{x}:N", f"{series}:N", alt.Tooltip("value:Q", title=axis)],
    )
    return chart(finish(drawn, 300), title, bars=rows)
