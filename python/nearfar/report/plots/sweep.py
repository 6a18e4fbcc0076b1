"""Chart of a sweep: the study's first metric by cell (one combination of the swept values)."""

from __future__ import annotations

from nearfar import units
from nearfar.diff import flat
from nearfar.report.html.charts import COUNT_LABEL, Datum
from nearfar.report.plots import Chart, bars, limit
from nearfar.run_folder import Run
from nearfar.sweep import SweepResult

#: The maximum number of distinguishable colours.
_SERIES = 8


def draw(result: SweepResult) -> Chart:
    """Cells along the axis, the rows of a cell by colour; only the first if there are many."""
    run = Run(result.folder, result.study, result, result.columns)
    rows, keys = flat(run)
    metric = next(iter(run.columns.metrics))
    varying = [key for key in keys if len({str(row[key]) for row in rows}) > 1]
    cells = [key for key in varying if key in result.varying]
    within = [key for key in varying if key not in cells]
    drawn: list[Datum] = [
        {
            "cell": ", ".join(units.keyed(key, row[key]) for key in cells) or "all",
            "row": ", ".join(units.keyed(key, row[key]) for key in within) or "all",
            "value": row[metric],
        }
        for row in rows
        if row[metric] is not None
    ]
    series = list(dict.fromkeys(row["row"] for row in drawn))
    names, note = limit(list(dict.fromkeys(row["cell"] for row in drawn)))
    if len(series) > _SERIES:
        note += f"; {_SERIES} of {len(series)} rows of each"
    shown = [row for row in drawn if row["row"] in series[:_SERIES] and row["cell"] in names]
    title = f"{result.run['of']}: {metric} by cell{note}"
    return bars(shown, title, x="cell", series="row", axis=metric, label=COUNT_LABEL)
