"""References by region and kind: the first chart after the heat map of a trace's page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar.errors import NearfarError
from nearfar.report.html import info
from nearfar.report.plots import Chart, chart, legend

if TYPE_CHECKING:
    from nearfar.info import Info


def draw(result: Info) -> Chart:
    """The hottest regions."""
    regions = result.content.get("regions")
    if not regions:
        raise NearfarError("plot: the trace has no regions")
    made = info.regions(regions)
    legend(made["spec"], "part")
    made["spec"]["encoding"]["y"]["axis"]["labelLimit"] = 400
    return chart(made["spec"], "Hottest regions", bars=made["bars"])
