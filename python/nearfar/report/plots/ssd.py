"""Time of the program by policy and size of the device's DRAM."""

from __future__ import annotations

from nearfar import units
from nearfar.declared import ssd as declared
from nearfar.report.html import charts
from nearfar.report.plots import Chart, bars
from nearfar.ssd import SsdResult


def draw(result: SsdResult) -> Chart:
    """A bar for each policy, grouped by size."""
    dram, epf, time = declared.ROWS.heads("dram_bytes", "epf", "seconds")
    rows: list[charts.Datum] = [
        {dram: units.size(row["dram_bytes"]), epf: row["epf"], "value": row["seconds"] * 1e9}
        for row in result.rows
    ]
    title = "Time by the device's DRAM and the policy for embedded page faults"
    return bars(rows, title, x=dram, series=epf, axis=time, label=charts.TIME_LABEL)
