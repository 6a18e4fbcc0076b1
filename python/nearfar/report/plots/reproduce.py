"""The first redrawn figure of a paper; without one, the verdicts on published statements."""

from __future__ import annotations

from collections import Counter

from nearfar import papers
from nearfar.report.html import charts, reproduce
from nearfar.report.plots import Chart, bars, chart
from nearfar.report.reproduce import STATES
from nearfar.reproduce import Reproduced


def draw(result: Reproduced) -> Chart:
    """Curves of the figure, or bars by paper."""
    if result.figures:
        drawn = reproduce.figure(result.figures[0])
        title = result.figures[0]["title"]
        return chart(drawn["spec"], title, points=drawn["points"], curves=drawn["curves"])
    counts = Counter((papers.label(row["paper"]), STATES[row["holds"]]) for row in result.rows)
    rows: list[charts.Datum] = [
        {"paper": paper, "verdict": verdict, "value": n} for (paper, verdict), n in counts.items()
    ]
    title, label = "Published statements and our results", charts.COUNT_LABEL
    return bars(rows, title, x="paper", series="verdict", axis="statements", label=label)
