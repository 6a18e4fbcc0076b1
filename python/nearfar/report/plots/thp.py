"""Private memory over time, by policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar.report.html.charts import Datum
from nearfar.report.plots import Chart, chart, legend

if TYPE_CHECKING:
    from nearfar.thp import ThpResult


def draw(result: ThpResult) -> Chart:
    """A line for each policy."""
    points: list[Datum] = [
        {
            "policy": point["policy"],
            "seconds": point["ns"] / 1e9,
            "mib": point["mapped_bytes"] / (1 << 20),
        }
        for point in result.points
    ]
    axes = {
        "x": {"field": "seconds", "type": "quantitative", "title": "time, seconds"},
        "y": {"field": "mib", "type": "quantitative", "title": "private memory, MiB"},
    }
    colour = {"field": "policy", "type": "nominal", "sort": [row["policy"] for row in result.rows]}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "mark": {"type": "line", "interpolate": "step-after"},
        "data": {"name": "points"},
        "encoding": {**axes, "color": colour},
    }
    legend(spec, "policy")
    return chart(spec, "Memory over time, by policy", points=points)
