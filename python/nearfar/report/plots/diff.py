"""How much each row of the first metric changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar import units
from nearfar.declared import diff as declared
from nearfar.report.plots import bars, limit

if TYPE_CHECKING:
    from nearfar.diff import DiffResult


def draw(result: DiffResult) -> Any:
    """A bar per row, its colour the verdict; of many rows those that changed most."""
    run = result.run
    metric = next(iter(run["metrics"]))
    changed = [
        row for row in result.rows if row["metric"] == metric and row["relative"] is not None
    ]
    changed.sort(key=lambda row: -abs(row["relative"]))
    shown, note = limit(changed)
    rows = [
        {
            "row": ", ".join(units.keyed(name, row[name]) for name in run["keys"]) or "all",
            "verdict": row["verdict"],
            "value": 100 * row["relative"],
        }
        for row in shown
    ]
    title = f"{metric}: {Path(run['b']).name} against {Path(run['a']).name}{note}"
    axis = f"{declared.ROWS.head('relative')}, %"
    return bars(
        rows, title, x="row", series="verdict", axis=axis, label="format(datum.value, '~g')"
    )
