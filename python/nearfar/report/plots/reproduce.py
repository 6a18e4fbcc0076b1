"""The first figure that was redrawn; without one, how many statements hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar import papers
from nearfar.report.html import charts, reproduce
from nearfar.report.plots import Chart, bars, chart
from nearfar.report.reproduce import STATES

if TYPE_CHECKING:
    from nearfar.reproduce import Reproduced


def draw(result: Reproduced) -> Chart:
    """Curves of the figure, or bars by paper."""
    if result.figures:
        made = reproduce.figure(result.figures[0])
        title = result.figures[0]["title"]
        return chart(made["spec"], title, points=made["points"], curves=made["curves"])
    counts: dict[tuple[str, str], int] = {}
    for row in result.rows:
        key = (papers.label(row["paper"]), STATES[row["holds"]])
        counts[key] = counts.get(key, 0) + 1
    rows: list[charts.Datum] = [
        {"paper": paper, "verdict": word, "value": n} for (paper, word), n in counts.items()
    ]
    title = "Published statements and our results"
    return bars(
        rows, title, x="paper", series="verdict", axis="statements", label=charts.COUNT_LABEL
    )
