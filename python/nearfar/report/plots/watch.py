"""Time against memory size, by the faults that a program would have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar.errors import NearfarError
from nearfar.report.html.watch import curve
from nearfar.report.plots import Chart, chart

if TYPE_CHECKING:
    from nearfar.watch import WatchResult


def draw(result: WatchResult) -> Chart:
    """A line; the answer is marked."""
    if not result.windows:
        raise NearfarError("plot: the result has no rows to draw")
    drawn = curve(result)
    return chart(
        drawn["spec"],
        f"Time against memory of {result.rows[0]['vm']}",
        points=drawn["points"],
        marks=drawn["marks"],
    )
