"""References by region and kind: the first chart of a trace's page after its heat map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearfar.errors import NearfarError
from nearfar.report.html import info
from nearfar.report.plots import chart, legend

if TYPE_CHECKING:
    from nearfar.info import Info


def draw(result: Info) -> Any:
    """The hottest regions."""
    if not result.get("regions"):
        raise NearfarError("plot: the trace names no regions")
    made = info.regions(result["regions"])
    legend(made["spec"], "part")
    made["spec"]["encoding"]["y"]["axis"]["labelLimit"] = 400
    return chart(made["spec"], "Hottest regions", bars=made["bars"])
