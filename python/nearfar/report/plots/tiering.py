"""Time against fast memory where several sizes were run; else bandwidth by phase and policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearfar import tiering_answers as answers
from nearfar.report.html import tiering
from nearfar.report.plots import chart

if TYPE_CHECKING:
    from nearfar.tiering import TieringResult


def draw(result: TieringResult) -> Any:
    """Means over seeds."""
    content = result.to_dict()
    title = "\n".join(answers.answers(content))
    names = list(dict.fromkeys(row["policy"] for row in content["rows"]))
    if answers.policy_curves(content):
        made = tiering.curve_chart(content, names)
        return chart(made["spec"], title, points=made["points"], marks=made["marks"])
    rows = answers.means(answers.of_memory(content, content["rows"]))
    made = tiering.bandwidth(rows, names)
    return chart(made["spec"], title, bars=made["bars"])
