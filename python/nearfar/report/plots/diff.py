"""The change of the first metric in each row."""

from __future__ import annotations

from pathlib import Path

from nearfar.declared import diff as declared
from nearfar.diff import DiffResult
from nearfar.report.diff import values_of
from nearfar.report.html.charts import RATE_LABEL, Datum
from nearfar.report.plots import Chart, bars, limit


def draw(result: DiffResult) -> Chart:
    """A bar for each row, coloured by verdict; of many rows, those with the largest change."""
    run = result.run
    metric = next(iter(run["metrics"]))
    changed = [
        (row["relative"], row)
        for row in result.rows
        if row["metric"] == metric and row["relative"] is not None
    ]
    changed.sort(key=lambda pair: -abs(pair[0]))
    shown, note = limit(changed)
    rows: list[Datum] = [
        {
            "row": ", ".join(values_of(row, run["keys"])) or "all",
            "verdict": row["verdict"],
            "value": 100 * relative,
        }
        for relative, row in shown
    ]
    title = f"{metric}: {Path(run['b']).name} against {Path(run['a']).name}{note}"
    axis = f"{declared.ROWS.head('relative')}, %"
    return bars(rows, title, x="row", series="verdict", axis=axis, label=RATE_LABEL)
