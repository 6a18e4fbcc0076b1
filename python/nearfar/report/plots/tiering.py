"""Bandwidth by phase and policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearfar.report import tiering as texts
from nearfar.report.html import tiering
from nearfar.report.plots import chart

if TYPE_CHECKING:
    from nearfar.tiering import TieringResult


def draw(result: TieringResult) -> Any:
    """Means over seeds."""
    content = result.to_dict()
    rows = texts.means(content)
    made = tiering.bandwidth(rows, list(dict.fromkeys(row["policy"] for row in rows)))
    return chart(made["spec"], texts.headline(content), bars=made["bars"])
