"""Private memory over time, by policy."""

from __future__ import annotations

from nearfar.report.html.thp import over_time
from nearfar.report.plots import Chart, chart
from nearfar.thp import ThpResult


def draw(result: ThpResult) -> Chart:
    """A line for each policy."""
    drawn = over_time(result)
    return chart(drawn["spec"], "Private memory over time", points=drawn["points"])
