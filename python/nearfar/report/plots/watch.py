"""Predicted time against memory size."""

from __future__ import annotations

from nearfar.errors import NearfarError
from nearfar.report.html.watch import curve
from nearfar.report.plots import Chart, chart
from nearfar.watch import WatchResult


def draw(result: WatchResult) -> Chart:
    """A line; the answer is marked."""
    if not result.windows:
        raise NearfarError("plot: the result has no rows to draw")
    drawn = curve(result)
    title = f"Time against memory of {result.rows[0]['vm']}"
    return chart(drawn["spec"], title, points=drawn["points"], marks=drawn["marks"])
