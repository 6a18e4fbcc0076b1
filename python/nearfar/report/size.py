"""The plan of ``nearfar size`` as text: a few lines for each program."""

from __future__ import annotations

from typing import TypedDict

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import paging as paging_declared
from nearfar.declared import size as declared
from nearfar.memory_curve import allowed_slowdown
from nearfar.report.fitted import labelled_sentences
from nearfar.size import SizeResult

#: What ``peak_bytes`` is.
_PEAK = "the peak resident set without the page cache"


def view(result: SizeResult) -> RenderableType:
    """The lines of each program."""
    limit = allowed_slowdown(result.run, paging_declared.OPTIONS)
    filled = "" if result.run["options"]["whole"] else " once memory is filled"
    parts: list[RenderableType] = []
    for row in result.rows:
        if len(result.rows) > 1:
            parts.append(Text(units.clean(row["vm"]), style="bold"))
        parts.append(labelled_sentences(lines(row, limit, filled)))
    return Group(*parts)


def lines(row: declared.Row, limit: float, filled: str) -> list[tuple[str, str]]:
    """The answer for a program: labels and sentences.

    Args:
        row: its row.
        limit: the accepted slowdown, as a share.
        filled: the part of the run that the slowdown covers: " once memory is filled", or empty.
    """
    if row["storage"] is None:
        swap = "none; with `--swap zram` the program may need less memory"
    elif not row["swapped_bytes"]:
        swap = f"{row['storage']}, which stays empty: all private memory fits"
    else:
        swap = swapped(row)
    part = "the whole run" if row["no_limit"] is None else "not the whole run"
    return [
        ("memory", _memory(row, limit, filled)),
        ("page size", f"{row['page_why']}{_start(row)}."),
        *([("huge pages", f"{row['thp_why']}.")] if row.get("thp_why") else []),
        ("swap", f"{swap}."),
        ("limits", limits(row)),
        ("based on", f"{row['trace']}, {part}, on the machine {row['machine']} (--view machine)."),
        ("risk", f"{row['risk']}."),
    ]


class Swapped(TypedDict):
    """Columns on swap."""

    storage: str | None
    swapped_bytes: int
    zram_bytes: int | None


def swapped(row: Swapped) -> str:
    """What the swap holds, in words."""
    text = f"{row['storage']} holds {units.size(row['swapped_bytes'])}"
    if row["zram_bytes"] is not None:
        text += f", compressed to {units.size(row['zram_bytes'])}"
    return text


def _memory(row: declared.Row, limit: float, filled: str) -> str:
    size = units.size
    text = size(row["memory_bytes"])
    if row["memory_bytes"] < row["peak_bytes"]:
        slower = row["slowdown"]
        text += ": " if slower > limit else ": at most "
        text += f"{units.percent(max(slower, limit))} slower{filled} than with "
        text += f"{size(row['peak_bytes'])}, {_PEAK}"
    else:
        text += f", {_PEAK}"
    if row["thrashes_below_bytes"] is not None:
        text += f"; below {size(row['thrashes_below_bytes'])} it takes over twice as long"
    if row["locked_bytes"]:
        text += f"; {size(row['locked_bytes'])} of it is locked"
    return f"{text}."


def _start(row: declared.Row) -> str:
    """How long filling memory takes, and what the page size changes."""
    at_most = "at most " if row.get("sampled_pages") else ""
    text = f"; filling memory is {at_most}{units.percent(row['start_share'])} of the run"
    # Both are 0 with 4 KiB pages.
    if row["bloat_bytes"] or row["start_gain"]:
        sign = "less" if row["start_gain"] >= 0 else "more"
        text += (
            f" and takes {units.percent(abs(row['start_gain']))} {sign} time than with 4 KiB pages"
        )
    return text


class Limits(TypedDict):
    """Columns with limits."""

    max_bytes: int | None
    high_bytes: int | None
    no_limit: str | None


def limits(row: Limits) -> str:
    """The limits of a row in words."""
    if row["max_bytes"] is None:
        return f"none is advised ({row['no_limit']})."
    text = f"MemoryMax {units.size(row['max_bytes'])}"
    if row["high_bytes"] is not None:
        text = f"MemoryHigh {units.size(row['high_bytes'])}, {text}"
    return f"{text} (--emit systemd-memory, cgroup, docker, kubernetes)."
