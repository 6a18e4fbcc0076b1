"""A run that is under way as text: the whole, and a line for each of its processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import run as declared
from nearfar.report.fitted import DETAIL, KEY, Table

#: Characters of a command line that are shown.
_COMMAND: Final = 20

#: Columns after process and command, most important first, with how important each is.
_COLUMNS: Final = {
    "fast_bytes": KEY,
    "far_pages_bytes": KEY,
    "promotions_per_second": 1,
    "faults_per_second": 1,
    "manager_share": 1,
    "demotions_per_second": 1,
    "budget_bytes": 1,
    "fast_peak_bytes": 1,
    "far_pages_peak_bytes": 1,
    "far_bytes": 1,
    "promotions": 1,
    "demotions": 1,
    "shadow_faults": DETAIL,
    "hint_faults": DETAIL,
    "aborts": DETAIL,
    "window_faults": DETAIL,
}


def watch(result: Mapping[str, Any]) -> RenderableType:
    """All that there is to say about one ``Snapshot``."""
    table = Table()
    table.add_column("process", justify="right", importance=KEY)
    table.add_column("command", importance=KEY)
    for name, importance in _COLUMNS.items():
        table.add_column(declared.WATCH_ROWS.head(name), justify="right", importance=importance)
    for row in result["rows"]:
        whole = row["pid"] is None
        table.add_row(
            "all" if whole else str(row["pid"]),
            "" if whole else _short(row["command"]),
            *(_value(name, row[name]) for name in _COLUMNS),
            style="bold" if whole else None,
        )
    return Group(Text(headline(result["run"]), style="bold"), table)


def headline(run: Mapping[str, Any]) -> str:
    """The run in a sentence."""
    text = f"run {run['launcher']}, {units.wait(run['seconds'])}"
    if run["is_over"]:
        text += ", is over"
        text += "" if run["exit_code"] is None else f": exit code {run['exit_code']}"
        text += f" ({units.clean(run['why'])})" if run["why"] else ""
    images = f"{run['images']} process image{'s' * (run['images'] != 1)}"
    far = units.clean(run["far"])
    return f"{text}; policy {run['policy']}, far tier {far}, {images} so far"


def _short(command: str) -> str:
    """The beginning of a command line, without the folders of the program."""
    program, space, rest = units.clean(command).partition(" ")
    text = program.rpartition("/")[2] + space + rest
    return text if len(text) <= _COMMAND else text[: _COMMAND - 3] + "..."


def _value(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return units.size(value)
    return units.percent(value) if name == "manager_share" else units.count(round(value))
