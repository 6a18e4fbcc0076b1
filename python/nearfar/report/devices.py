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
    size, share = units.size(result.rows[0]["memory_bytes"]), result.rows[0]["memory_bytes"]
    part = units.percent(share / result.run["peak_bytes"])
    table = Table(
        f"Slowdown with {size} of memory ({part} of all), and memory for at most {limit} slowdown"
    )
    names, rows = cells(result.rows)
    table.add_column(names[0], importance=KEY)
    table.add_column(names[1])
    for name in names[2:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    lines = "\n".join(answer(result))
    return Group(Text(lines, style="bold"), Text(""), table, *map(Text, compressed(result.rows)))


def cells(rows: Sequence[declared.Row]) -> tuple[list[str], list[list[str]]]:
    """The heads of the table, and the cells of each device."""
    heads = declared.ROWS.head
    has_cost = any(row["cost"] is not None for row in rows)
    names = ["storage", "access", "total_ns", "slowdown", "device_reads", "needed_bytes",
             "device_bytes", *(["cost"] if has_cost else [])]  # fmt: skip
    return list(map(heads, names)), [
        [
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
            *(["-" if row["cost"] is None else units.digits(row["cost"])] if has_cost else []),
        ]
        for row in rows
    ]


def compressed(rows: Sequence[declared.Row]) -> Iterator[str]:
    """Why compressed memory differs from other devices."""
    for row in rows:
        if row["storage"] != ZRAM:
            continue
        if row["total_ns"] is None:
            yield "zram: what does not fit would take all of this memory, compressed; give more."
        elif row["device_reads"]:
            yield "zram: compressed pages take a part of the memory, so more pages are read."


def answer(result: DevicesResult) -> list[str]:
    """Which device needs least memory, and what it rests on."""
    rows, run = result.rows, result.run
    least = min(row["needed_bytes"] for row in rows)
    best = [row["storage"] for row in rows if row["needed_bytes"] == least]
    names = "any of them" if len(best) == len(rows) else ", ".join(best)
    text = f"Least memory: {units.size(least)} with {names}."
    rests = f"Machine {run['machine']}; peak resident set {units.size(run['peak_bytes'])}."
    return [units.clean(text), units.clean(rests)]
