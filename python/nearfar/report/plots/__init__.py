"""Charts of results for notebooks: the first of each study's page, as ``altair.Chart``.

One file a study with ``draw(result)``, which the result names (``Result.chart``). What a page draws
already is taken from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearfar.errors import NearfarError
from nearfar.report import palette

WIDTH = 560
"""Width of a chart, pixels; a page gives its charts the width there is."""


def chart(spec: Mapping[str, Any], title: str, **data: Sequence[Mapping[str, Any]]) -> Any:
    """A page's specification with its data put in: a chart that stands alone.

    Args:
        spec: what a function of :mod:`nearfar.report.html.charts` made.
        title: of the chart, plain text; further lines are smaller.
        data: rows by the name that the specification calls them by.

    Raises:
        NearfarError: there are no rows.
    """
    import altair as alt

    if not any(data.values()):
        raise NearfarError("plot: the result has no rows to draw")
    first, *more = title.splitlines()
    heading = {"text": first, "subtitle": more, "limit": WIDTH + 120}
    whole = {**spec, "width": WIDTH, "title": heading, "datasets": data, "autosize": "pad"}
    colours = list(palette.OKABE_ITO.values())
    whole["config"] = {"range": {"category": colours, "ordinal": {"scheme": "viridis"}}}
    return alt.Chart.from_dict(whole)


def legend(spec: Mapping[str, Any], field: str, **how: Any) -> None:
    """Put a legend into a page's specification, whose colours the page itself explains.

    Args:
        spec: the specification, or a layer of it; it is changed.
        field: what the colours distinguish.
        how: keys of Vega-Lite's legend.
    """
    for layer in spec.get("layer", ()):
        legend(layer, field, **how)
    colour = spec.get("encoding", {}).get("color", {})
    if colour.get("field") == field:
        colour["legend"] = {"title": None, "orient": "top", **how}


#: Places along an axis that can still be read.
PLACES = 24


def limit(items: Sequence[Any]) -> tuple[Sequence[Any], str]:
    """As many items as an axis has places for, and what a title says where some are left out."""
    note = f" ({PLACES} of {len(items)})" if len(items) > PLACES else ""
    return items[:PLACES], note


def bars(
    rows: Sequence[Mapping[str, Any]], title: str, *, x: str, series: str, axis: str, label: str
) -> Any:
    """Bars side by side: ``value`` of each row, by the row's ``x`` and ``series``.

    Args:
        rows: mappings of ``value`` and the two keys, which are texts.
        title: of the chart.
        x: key of what stands along the axis, in the order of the rows.
        series: key of what colours distinguish.
        axis: what ``value`` is, with its unit.
        label: Vega expression of a tick, as in :mod:`nearfar.report.html.charts`.
    """
    import altair as alt

    from nearfar.report.html import charts

    order = list(dict.fromkeys(row[x] for row in rows))
    names = list(dict.fromkeys(row[series] for row in rows))
    # Labels that would run into one another are turned; a character takes some 6 pixels.
    turned = sum(6 * len(str(place)) + 12 for place in order) > WIDTH
    made = (
        alt.Chart(alt.NamedData("bars"))
        .mark_bar()
        .encode(
            x=alt.X(f"{x}:N", sort=order, axis=alt.Axis(labelAngle=-40 if turned else 0)),
            xOffset=alt.XOffset(f"{series}:N", sort=names),
            y=alt.Y("value:Q", axis=alt.Axis(title=axis, labelExpr=label, tickCount=6)),
            color=alt.Color(f"{series}:N", scale=alt.Scale(domain=names)),
            tooltip=[f"{x}:N", f"{series}:N", alt.Tooltip("value:Q", title=axis)],
        )
    )
    return chart(charts.finish(made, 300), title, bars=rows)
