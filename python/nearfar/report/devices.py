"""``nearfar devices`` as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import devices as declared
from nearfar.declared import paging as paging_declared
from nearfar.devices import DevicesResult
from nearfar.memory_curve import allowed_slowdown
from nearfar.report import cells as texts
from nearfar.report.fitted import KEY, Table
from nearfar.size.swap import ZRAM


def view(result: DevicesResult) -> RenderableType:
    """The answer, what it is based on, and a row per device."""
    limit = units.percent(allowed_slowdown(result.run, paging_declared.OPTIONS))
    memory = result.rows[0]["memory_bytes"]
    size, share = units.size(memory), units.percent(memory / result.run["peak_bytes"])
    table = Table(
        f"Slowdown with {size} of memory ({share} of the peak), and memory for at most {limit} "
        "slowdown"
    )
    heads, rows = cells(result.rows)
    table.add_column(heads[0], importance=KEY)
    table.add_column(heads[1])
    table.add_columns(heads[2:], justify="right")
    table.add_rows(rows)
    lines = "\n".join(answer(result))
    return Group(Text(lines, style="bold"), Text(""), table, *map(Text, compressed(result.rows)))


def cells(rows: Sequence[declared.Row]) -> tuple[list[str], list[list[str]]]:
    """The heads of the table, and the cells of each device."""
    has_cost = any(row["cost"] is not None for row in rows)
    names = ["storage", "access", "total_ns", "slowdown", "device_reads", "needed_bytes",
             "device_bytes", *(["cost"] if has_cost else [])]  # fmt: skip
    return declared.ROWS.heads(*names), texts.cells(declared.ROWS, names, rows)


def compressed(rows: Sequence[declared.Row]) -> Iterator[str]:
    """Why compressed memory differs from other devices."""
    for row in rows:
        if row["storage"] != ZRAM:
            continue
        if row["total_ns"] is None:
            yield "zram: the swapped pages, compressed, would fill the memory; give more --memory."
        elif row["device_reads"]:
            yield "zram: compressed pages take a part of the memory, so more pages are read."


def answer(result: DevicesResult) -> list[str]:
    """Which device needs least memory; the machine and peak resident set that this is based on."""
    rows, run = result.rows, result.run
    least = min(row["needed_bytes"] for row in rows)
    best = [row["storage"] for row in rows if row["needed_bytes"] == least]
    names = "any of the devices" if len(best) == len(rows) else ", ".join(best)
    text = f"Least memory: {units.size(least)} with {names}."
    basis = f"Machine {run['machine']}; peak resident set {units.size(run['peak_bytes'])}."
    return [units.clean(text), units.clean(basis)]
