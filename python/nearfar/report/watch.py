"""The memory that a running program needs, as text."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from nearfar import units
from nearfar.declared import watch as declared
from nearfar.report.size import limits
from nearfar.watch import WatchResult


def view(result: WatchResult) -> RenderableType:
    """The lines of the answer."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for head, text in lines(result.rows[0]):
        grid.add_row(head, Text(units.clean(text)))
    return grid


def lines(row: declared.Row) -> list[tuple[str, str]]:
    """The answer: heads and sentences."""
    size = units.size
    swap = row["storage"]
    memory = f"{size(row['memory_bytes'])} ({size(row['low_bytes'])} to "
    memory += f"{size(row['high_end_bytes'])}): "
    if row["memory_bytes"] < row["resident_bytes"]:
        memory += f"{units.percent(row['slowdown'])} slower than with all of "
        memory += f"{size(row['resident_bytes'])}, with {units.digits(row['faults'])} faults/s"
    else:
        memory += "all that is resident"
    if row["locked_bytes"]:
        memory += f"; {size(row['locked_bytes'])} is locked"
    parts = f"{size(row['anonymous_bytes'])} of it anonymous, {size(row['file_bytes'])} files"
    text = "none; all anonymous memory has to fit"
    if swap is not None:
        text = f"{swap} holds {size(row['swapped_bytes'])}"
        if row["zram_bytes"] is not None:
            text += f", compressed to {size(row['zram_bytes'])}"
    return [
        ("memory", f"{memory}; {parts}."),
        ("swap", f"{text}."),
        ("limits", limits(row)),
        (
            "rests on",
            f"{row['vm']}, {_processes(row['processes'])}, watched for {row['seconds']:.3g} s by "
            f"{row['why_method']}; times of the machine {row['machine']}.",
        ),
        ("cost", f"{units.percent(row['cost'])} of a processor."),
        ("risk", "what it did before and does later is not seen; nor is a page size."),
    ]


def _processes(count: int) -> str:
    return "which has ended" if count == 0 else f"{count} process{'es' if count > 1 else ''}"
