"""Options and columns of ``watch``.

``make declared`` generates ``nearfar.declared.watch`` from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nearfar.columns import byte_size, integer, number, share, text
from nearfar.declared import size
from nearfar.schema import Option, Rows
from nearfar.watch.methods import AUTO, ORDER, method

_SIZE: Final = {option.name: option for option in size.OPTIONS}
_COLUMN: Final = {column.name: column for column in size.ROWS.columns}

OPTIONS: Final = (
    Option(
        "for_",
        "str | float",
        "How long to watch. The longest window is a quarter of it, at most 30 s.",
        default="60s",
        metavar="TIME",
    ),
    Option(
        "budget",
        "str | float",
        "The most processor time to use, as a share of one processor.",
        default="2%",
        metavar="SHARE",
    ),
    Option(
        "method",
        "str",
        "How to see which memory is used; `auto` takes the first that works here.",
        default=AUTO,
        metavar="METHOD",
        choices=((AUTO, ""), *((name, method(name).SUMMARY) for name in ORDER)),
        open=False,
    ),
    _SIZE["machine"],
    _SIZE["swap"],
    replace(_SIZE["slowdown"], default="5%", shown=""),
    _SIZE["zram_ratio"],
    Option(
        "confirm",
        "bool",
        "Then try the advised memory for 10 s: the kernel reclaims at most 1 % at a time. It ends "
        "early if the program stalls too much.",
        default=False,
    ),
)

ROWS: Final = Rows(
    columns=(
        text("vm", "What was watched.", title="program"),
        text("method", "The method that was used."),
        text("why_method", "Why this method was used."),
        text("machine", "The machine whose times were used."),
        _COLUMN["storage"],
        byte_size(
            "memory_bytes",
            "Memory with which it is at most `slowdown` slower; without swap, at least all of its "
            "anonymous memory.",
        ),
        byte_size("low_bytes", "Lower end of the interval of `memory_bytes` (docs/watch.md)."),
        byte_size("high_end_bytes", "Upper end of the interval of `memory_bytes`."),
        share("slowdown", "The slowdown with this memory."),
        number("faults", "Faults with this memory.", "a second"),
        byte_size("anonymous_bytes", "Anonymous part of `memory_bytes`."),
        byte_size("file_bytes", "Mapped-file part of `memory_bytes`."),
        byte_size("resident_bytes", "The largest resident set during the watch."),
        byte_size("peak_bytes", "The peak resident set since the program began."),
        byte_size("locked_bytes", "Memory that it locks (`mlock`)."),
        byte_size("swapped_bytes", "Anonymous memory that does not fit in `memory_bytes`."),
        _COLUMN["zram_bytes"],
        _COLUMN["high_bytes"],
        _COLUMN["max_bytes"],
        _COLUMN["no_limit"],
        byte_size(
            "tried_bytes",
            "Resident memory when the advice was tried, on average; null if it was not.",
            nullable=True,
        ),
        number("tried_faults", "Faults during the trial.", "a second", nullable=True),
        share("tried_slowdown", "Share of the trial in which it stalled.", nullable=True),
        text(
            "tried_stopped",
            "Why it was not tried or not held; null if it was held for 10 s, or without --confirm.",
            nullable=True,
        ),
        number("seconds", "How long it was watched.", "s"),
        share("cost", "Processor time of nearfar, of one processor."),
        integer("processes", "Processes at the end."),
    ),
    keys=("vm", "method", "storage"),
    metrics={"memory_bytes": "less"},
)

WINDOWS: Final = Rows(
    columns=(
        number("seconds", "Length of the window.", "s"),
        byte_size("anonymous_bytes", "Anonymous memory that was used in it."),
        byte_size("file_bytes", "Pages of mapped files that were used in it."),
        number("faults", "Faults with as much memory.", "a second"),
        share("slowdown", "The slowdown that they cause."),
    ),
    keys=("seconds",),
    metrics={},
)

TABLES: Final = {"rows": ROWS, "windows": WINDOWS}
