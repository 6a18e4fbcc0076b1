"""Sizes as text: at most six lines for each program."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nearfar import units
from nearfar.declared import paging as paging_declared
from nearfar.declared import size as declared
from nearfar.memory_curve import slowdown
from nearfar.size import SizeResult


def view(result: SizeResult) -> RenderableType:
    """The lines of each program."""
    limit = slowdown(result.run, paging_declared.OPTIONS)
    parts: list[RenderableType] = []
    for row in result.rows:
        if len(result.rows) > 1:
            parts.append(Text(units.clean(row["vm"]), style="bold"))
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(overflow="fold")
        for head, text in lines(row, limit):
            grid.add_row(head, Text(units.clean(text)))
        parts.append(grid)
    return Group(*parts)


def lines(row: declared.Row, limit: float) -> list[tuple[str, str]]:
    """The answer for a program: what, and a sentence; ``limit``: the slowdown that was accepted."""
    size = units.size
    swap = row["storage"]
    found = [
        ("memory", _memory(row, limit)),
        ("page size", f"{row['page_why']}{_start(row)}."),
    ]
    if swap is None:
        found.append(("swap", "none; with `--swap zram` it may need less memory."))
    elif not row["swapped_bytes"]:
        found.append(("swap", f"{swap}, which it hardly needs."))
    else:
        text = f"{swap} for {size(row['swapped_bytes'])}"
        if row["zram_bytes"] is not None:
            text += f", which take {size(row['zram_bytes'])} of memory there"
        found.append(("swap", f"{text}."))
    found.append(("limits", _limits(row)))
    found.append(
        (
            "rests on",
            f"{row['trace']}, {'part of the run' if row['no_limit'] else 'the whole run'}, on the "
            f"machine {row['machine']} (--view machine).",
        )
    )
    found.append(("risk", f"{row['risk']}."))
    return found


def _memory(row: declared.Row, limit: float) -> str:
    size = units.size
    if row["storage"] is None:
        text = f"{size(row['memory_bytes'])}; resident at most {size(row['peak_bytes'])}"
    else:
        slower = row["slowdown"]
        text = f"{size(row['memory_bytes'])}: "
        text += "" if slower > limit else "at most "
        text += f"{units.percent(max(slower, limit))} slower than with all of "
        text += size(row["peak_bytes"])
        if row["thrashes_below_bytes"] is not None:
            text += f"; below {size(row['thrashes_below_bytes'])} it takes twice as long"
    if row["locked_bytes"]:
        text += f"; {size(row['locked_bytes'])} of it is locked"
    return f"{text}."


def _start(row: declared.Row) -> str:
    """What the page size does while memory is filled."""
    share = units.percent(row["start_share"])
    text = f"; filling memory is {share} of the run"
    if row["bloat_bytes"] or row["start_gain"]:
        sign = "less" if row["start_gain"] >= 0 else "more"
        text += f" and takes {units.percent(abs(row['start_gain']))} {sign} time"
    return text


def _limits(row: declared.Row) -> str:
    if row["max_bytes"] is None:
        return f"none is advised ({row['no_limit']})."
    text = f"MemoryMax {units.size(row['max_bytes'])}"
    if row["high_bytes"] is not None:
        text = f"MemoryHigh {units.size(row['high_bytes'])}, {text}"
    return f"{text} (--emit systemd-memory, cgroup, docker, kubernetes)."
