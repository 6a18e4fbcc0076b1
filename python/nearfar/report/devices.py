"""Devices as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import devices as declared
from nearfar.declared import paging as paging_declared
from nearfar.devices import DevicesResult
from nearfar.memory_curve import slowdown
from nearfar.report.fitted import KEY, Table
from nearfar.size.swap import ZRAM


def view(result: DevicesResult) -> RenderableType:
    """The answer, what it rests on, and a row per device."""
    limit = units.percent(slowdown(result.run, paging_declared.OPTIONS))
    rows, heads = result.rows, declared.ROWS.head
    has_cost = any(row["cost"] is not None for row in rows)
    size, share = units.size(rows[0]["memory_bytes"]), rows[0]["memory_bytes"]
    part = units.percent(share / result.run["peak_bytes"])
    table = Table(
        f"Slowdown with {size} of memory ({part} of all), and memory for at most {limit} slowdown"
    )
    table.add_column(heads("storage"), importance=KEY)
    table.add_column(heads("access"))
    for name in ("total_ns", "slowdown", "device_reads", "needed_bytes", "device_bytes"):
        table.add_column(heads(name), justify="right")
    if has_cost:
        table.add_column(heads("cost"), justify="right")
    for row in rows:
        cost = row["cost"]
        table.add_row(
            units.clean(row["storage"]),
            row["access"],
            *(
                "-" if value is None else show(value)
                for value, show in (
                    (row["total_ns"], units.duration),
                    (row["slowdown"], units.percent),
                    (row["device_reads"], units.count),
                )
            ),
            units.size(row["needed_bytes"]),
            units.size(row["device_bytes"]),
            *(["-" if cost is None else units.digits(cost)] if has_cost else []),
        )
    return Group(
        Text(_answer(result), style="bold"), Text(""), table, *map(Text, _compressed(rows))
    )


def _compressed(rows: Sequence[declared.Row]) -> Iterator[str]:
    """Why compressed memory differs from other devices."""
    for row in rows:
        if row["storage"] != ZRAM:
            continue
        if row["total_ns"] is None:
            yield "zram: what does not fit would take all of this memory, compressed; give more."
        elif row["device_reads"]:
            yield "zram: compressed pages take a part of the memory, so more pages are read."


def _answer(result: DevicesResult) -> str:
    """Which device needs least memory, and what it rests on."""
    rows, run = result.rows, result.run
    least = min(row["needed_bytes"] for row in rows)
    best = [row["storage"] for row in rows if row["needed_bytes"] == least]
    names = "any of them" if len(best) == len(rows) else ", ".join(best)
    text = f"Least memory: {units.size(least)} with {names}."
    rests = f"Machine {run['machine']}; resident at most {units.size(run['peak_bytes'])}."
    return f"{units.clean(text)}\n{units.clean(rests)}"
