"""Predicted and simulated time per reference by page size, for the result's first VM."""

from __future__ import annotations

from nearfar import units
from nearfar.advise import AdviseResult
from nearfar.errors import NearfarError
from nearfar.report.html import advise, charts
from nearfar.report.plots import Chart, chart


def draw(result: AdviseResult) -> Chart:
    """A predicted line, simulated points, and marked page sizes."""
    if not result.rows:
        raise NearfarError("plot: the result has no rows to draw")
    row = result.rows[0]
    shown = advise.curve(row)
    spec = charts.advice([point["page_bytes"] for point in row["curve"]])
    gain = f", {units.percent(row['gain'])} less time per reference than 4 KiB"
    title = (
        f"{shown['name']}: {units.size(row['advised_page_bytes'])}{gain if row['gain'] else ''}\n"
        "line: predicted; points: simulated, crosses at sizes that were not fitted"
    )
    return chart(spec, title, curve=shown["curve"], marks=shown["marks"])
