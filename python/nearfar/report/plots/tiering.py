"""Time against the size of fast memory, or else bandwidth by phase and policy."""

from __future__ import annotations

from nearfar import tiering_answers as answers
from nearfar.report.html import tiering
from nearfar.report.plots import Chart, chart
from nearfar.tiering import TieringResult, of_shown_memory


def draw(result: TieringResult) -> Chart:
    """Draw means over seeds: curves of time if there are any, else bars of bandwidth."""
    title = "\n".join(answers.answers(result))
    names = list(dict.fromkeys(row["policy"] for row in result.rows))
    if answers.policy_curves(result):
        drawn = tiering.curve_chart(result, names)
        return chart(drawn["spec"], title, points=drawn["points"], marks=drawn["marks"])
    rows = answers.by_tenant(answers.means(of_shown_memory(result, result.rows)), "phase")
    drawn = tiering.bandwidth(rows, names)
    return chart(drawn["spec"], title, bars=drawn["bars"])
