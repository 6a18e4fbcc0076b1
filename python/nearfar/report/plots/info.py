"""References by region and kind: the chart below the heat map in a trace's HTML report."""

from __future__ import annotations

from nearfar.errors import NearfarError
from nearfar.info import Info
from nearfar.report.html import info
from nearfar.report.plots import Chart, chart, legend


def draw(result: Info) -> Chart:
    """The hottest regions."""
    regions = result.content.get("regions")
    if not regions:
        raise NearfarError("plot: the trace has no regions")
    drawn = info.regions(regions)
    legend(drawn["spec"], "part")
    drawn["spec"]["encoding"]["y"]["axis"]["labelLimit"] = 400
    return chart(drawn["spec"], "Hottest regions", bars=drawn["bars"])
