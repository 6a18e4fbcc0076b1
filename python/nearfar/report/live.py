"""A running ``nearfar run`` as text: its totals, and a line for each process."""

from __future__ import annotations

from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import run as declared
from nearfar.live_watch import Snapshot, WatchedRun
from nearfar.report.cells import cells
from nearfar.report.fitted import DETAIL, KEY, Table

#: The maximum length of a command line, in characters.
_COMMAND: Final = 20

#: Columns after process and command, most important first.
_COLUMNS: Final = (
    "fast_bytes",
    "far_pages_bytes",
    "promotions_per_second",
    "faults_per_second",
    "manager_share",
    "demotions_per_second",
    "budget_bytes",
    "fast_peak_bytes",
    "far_pages_peak_bytes",
    "far_bytes",
    "promotions",
    "demotions",
    "shadow_faults",
    "hint_faults",
    "aborts",
    "window_faults",
)
_KEYS: Final = ("fast_bytes", "far_pages_bytes")
_DETAILS: Final = ("shadow_faults", "hint_faults", "aborts", "window_faults")


def watch(result: Snapshot) -> RenderableType:
    """The run and its processes."""
    table = Table()
    table.add_column("process", justify="right", importance=KEY)
    table.add_column("command", importance=KEY)
    for name in _COLUMNS:
        importance = KEY if name in _KEYS else DETAIL if name in _DETAILS else 1
        table.add_column(declared.WATCH_ROWS.head(name), justify="right", importance=importance)
    values = cells(declared.WATCH_ROWS, _COLUMNS, result.rows)
    for row, texts in zip(result.rows, values, strict=True):
        total = row["pid"] is None
        table.add_row(
            "all" if total else str(row["pid"]),
            "" if total else _short(row["command"]),
            *texts,
            style="bold" if total else None,
        )
    return Group(Text(headline(result.run), style="bold"), table)


def headline(run: WatchedRun) -> str:
    """The run in a sentence. ``launcher`` is a PID; each ``execve`` starts another image."""
    text = f"run {run['launcher']}, {units.wait(run['seconds'])}"
    if run["is_over"]:
        text += ", is over"
        text += "" if run["exit_code"] is None else f": exit code {run['exit_code']}"
        text += f" ({units.clean(run['why'])})" if run["why"] else ""
    images = f"{run['images']} process image{'s' * (run['images'] != 1)}"
    far = units.clean(run["far"])
    return f"{text}; policy {run['policy']}, far tier {far}, {images} so far"


def _short(command: str) -> str:
    """The start of a command line, without the folders of the program."""
    program, space, rest = units.clean(command).partition(" ")
    text = program.rpartition("/")[2] + space + rest
    return text if len(text) <= _COMMAND else text[: _COMMAND - 3] + "..."
