"""Time per reference by page size, at the recommendation's memory size and the first storage.

Page sizes that thrash can take a thousand times as long as the best one. To keep the other bars
visible, bars end at :data:`MAX` times the time of 4 KiB, with their time written on them.
"""

from __future__ import annotations

from typing import Final, cast

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.paging import PagingResult
from nearfar.paging_findings import USUAL_PAGE
from nearfar.report.html import charts, page, paging
from nearfar.report.plots import Chart, chart, legend

#: The end of the axis, as a multiple of the time of 4 KiB.
MAX: Final = 3


def draw(result: PagingResult) -> Chart:
    """Bars of stacked parts of the time; the best page is marked."""
    shown = findings.with_machine_names(result)
    model = paging.model(shown)
    empty: paging.Cell = {"rows": [], "sentence": "no rows"}
    cell = model["cells"].get(model["initial"], empty)
    times = paging.times(shown)
    stacked = [
        {**row, "part": part, "order": order, "value": row[name]}
        for row in cell["rows"]
        for order, (name, part) in enumerate(times["parts"])
    ]
    best = [{**row, "text": "best"} for row in cell["rows"] if row["best"]]
    spec = times["spec"]
    legend(spec, "part")
    title = cell["sentence"].replace(": ", "\n", 1)
    totals = {row["label"]: cast("float", row["total_ns"]) for row in cell["rows"]}
    usual, of = totals.get(page.typeset(units.size(USUAL_PAGE))), "the time of 4 KiB"
    if usual is None:
        usual, of = min(totals.values(), default=0.0), "the least time"
    top = MAX * usual
    beyond = [row for row in cell["rows"] if totals[row["label"]] > top]
    if beyond:
        _clip(spec, top)
        title += f"\nbars are cut at {MAX} times {of}; cut bars show their time"
    return chart(spec, title, bars=stacked, best=best, beyond=beyond)


def _clip(spec: charts.Spec, top: float) -> None:
    """End the axis at ``top``; on each longer bar, write the time that it stands for."""
    bars = spec["layer"][0]["encoding"]
    bars["y"]["scale"] = {"domain": [0, top], "nice": False}
    spec["layer"].append(
        {
            "data": {"name": "beyond"},
            "mark": {"type": "text", "dy": 10, "fontSize": 10, "fontWeight": "bold"},
            "encoding": {
                "x": bars["x"],
                "y": {"datum": top, "type": "quantitative"},
                "text": {"field": "total_ns_label", "type": "nominal"},
            },
        }
    )
