"""Time per reference by page size, at the middle memory size and the first storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearfar.report.html import charts, paging
from nearfar.report.plots import chart

if TYPE_CHECKING:
    from nearfar.paging import PagingResult


def draw(result: PagingResult) -> Any:
    """Translation and data stacked, the best page marked."""
    model = paging.model(result.to_dict())
    none: paging.Cell = {"rows": [], "sentence": "no rows"}
    cell = model["cells"].get(model["initial"], none)
    stacked = [
        {**row, "part": part, "order": order, "value": row[part]}
        for row in cell["rows"]
        for order, part in enumerate(("translation", "data"))
    ]
    best = [{**row, "text": "best"} for row in cell["rows"] if row["best"]]
    labels = [str(row["label"]) for row in cell["rows"]]
    return chart(charts.times(labels), cell["sentence"], bars=stacked, best=best)
