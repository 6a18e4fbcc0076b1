"""Options and columns of ``watch``.

``make declared`` generates ``nearfar.declared.watch`` from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nearfar.declared import size
from nearfar.schema import Column, Option, Rows
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
        "early if the program waits for memory too often.",
        default=False,
    ),
)

ROWS: Final = Rows(
    columns=(
        Column("vm", "string", False, "", "What was watched.", title="program"),
        Column("method", "string", False, "", "How."),
        Column("why_method", "string", False, "", "Why so, in words."),
        Column("machine", "string", False, "", "The machine whose times were used."),
        _COLUMN["storage"],
        Column(
            "memory_bytes",
            "int64",
            False,
            "bytes",
            "Memory with which it is at most `slowdown` slower; without swap, at least all of its "
            "anonymous memory.",
        ),
        Column("low_bytes", "int64", False, "bytes", "Lower end of its interval (docs/watch.md)."),
        Column("high_end_bytes", "int64", False, "bytes", "Upper end."),
        Column("slowdown", "double", False, "share", "The slowdown with this memory."),
        Column("faults", "double", False, "a second", "Faults with this memory."),
        Column("anonymous_bytes", "int64", False, "bytes", "Its part that only swap can hold."),
        Column("file_bytes", "int64", False, "bytes", "Its part in pages of mapped files."),
        Column("resident_bytes", "int64", False, "bytes", "The largest resident set meanwhile."),
        Column(
            "peak_bytes", "int64", False, "bytes", "The peak resident set since the program began."
        ),
        Column("locked_bytes", "int64", False, "bytes", "Memory that it locks (`mlock`)."),
        Column("swapped_bytes", "int64", False, "bytes", "Anonymous memory that does not fit."),
        _COLUMN["zram_bytes"],
        _COLUMN["high_bytes"],
        _COLUMN["max_bytes"],
        _COLUMN["no_limit"],
        Column(
            "tried_bytes",
            "int64",
            True,
            "bytes",
            "Resident memory when the advice was tried, on average; null if it was not.",
        ),
        Column("tried_faults", "double", True, "a second", "Faults that were counted then."),
        Column(
            "tried_slowdown", "double", True, "share", "The share of that time that it stalled."
        ),
        Column(
            "tried_stopped",
            "string",
            True,
            "",
            "Why it was not tried or not held; null if it was held for 10 s, or without --confirm.",
        ),
        Column("seconds", "double", False, "s", "How long it was watched."),
        Column("cost", "double", False, "share", "Processor time of nearfar, of one processor."),
        Column("processes", "int64", False, "", "Processes at the end."),
    ),
    keys=("vm", "method", "storage"),
    metrics={"memory_bytes": "less"},
)

WINDOWS: Final = Rows(
    columns=(
        Column("seconds", "double", False, "s", "Length of the window."),
        Column("anonymous_bytes", "int64", False, "bytes", "Anonymous memory that was used in it."),
        Column(
            "file_bytes", "int64", False, "bytes", "Pages of mapped files that were used in it."
        ),
        Column("faults", "double", False, "a second", "Faults with as much memory."),
        Column("slowdown", "double", False, "share", "The slowdown that they cause."),
    ),
    keys=("seconds",),
    metrics={},
)

TABLES: Final = {"rows": ROWS, "windows": WINDOWS}
