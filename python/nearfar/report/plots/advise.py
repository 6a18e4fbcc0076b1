"""Predicted and simulated time by page size, of the first virtual machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearfar.errors import NearfarError
from nearfar.report.html import advise, charts
from nearfar.report.plots import chart

if TYPE_CHECKING:
    from nearfar.advise import AdviseResult


def draw(result: AdviseResult) -> Any:
    """As the page shows it; several machines are several results."""
    if not result.rows:
        raise NearfarError("plot: the result has no rows to draw")
    shown = advise.curve(result.rows[0])
    spec = charts.advice([point["page_bytes"] for point in result.rows[0]["curve"]])
    return chart(spec, shown["name"], curve=shown["curve"], marks=shown["marks"])
