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
        "How long to watch. `accessed` counts the memory used in windows of up to a quarter of "
        "that, at most 30 s.",
        default="60s",
        metavar="TIME",
    ),
    Option(
        "budget",
        "str | float",
        "The most processor time that nearfar may use for watching, as a share of one processor.",
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
        "After watching, reclaim memory down to the advice, at most 1 % at a time, and hold it "
        "there "
        "for 10 s; end early if the program stalls too much.",
        default=False,
    ),
)

ROWS: Final = Rows(
    columns=(
        text(
            "vm",
            "The watched program: name of the process, control group, unit or container.",
            title="program",
        ),
        text("method", "The method of watching (`--method`)."),
        text("why_method", "Why `method` was used."),
        text("machine", "The machine whose fault and I/O times were used."),
        _COLUMN["storage"],
        byte_size(
            "memory_bytes",
            "Memory with which the program is at most `--slowdown` slower; without swap, at least "
            "all anonymous memory.",
        ),
        byte_size("low_bytes", "Lower end of the interval of `memory_bytes` (docs/watch.md)."),
        byte_size("high_end_bytes", "Upper end of the interval of `memory_bytes`."),
        share("slowdown", "The predicted slowdown with `memory_bytes`."),
        number("faults", "Predicted faults on swap and files with `memory_bytes`.", "a second"),
        byte_size("anonymous_bytes", "Anonymous part of `memory_bytes`."),
        byte_size("file_bytes", "Mapped-file part of `memory_bytes`."),
        byte_size("resident_bytes", "The largest resident set during the watch."),
        byte_size("peak_bytes", "The peak resident set since the program began."),
        byte_size("locked_bytes", "Memory that the program locks (`mlock`)."),
        byte_size(
            "swapped_bytes", "Anonymous memory that does not fit in `memory_bytes`; 0 without swap."
        ),
        _COLUMN["zram_bytes"],
        _COLUMN["high_bytes"],
        _COLUMN["max_bytes"],
        _COLUMN["no_limit"],
        byte_size(
            "tried_bytes",
            "Resident memory in the trial of `memory_bytes`: the mean, or that when the trial "
            "stopped; null if not tried.",
            nullable=True,
        ),
        number(
            "tried_faults",
            "Reclaimed pages used again in the trial of --confirm; null if not tried.",
            "a second",
            nullable=True,
        ),
        share(
            "tried_slowdown",
            "Share of the trial of --confirm in which a task waited for memory (PSI); null if "
            "not tried.",
            nullable=True,
        ),
        text(
            "tried_stopped",
            "Why `memory_bytes` was not tried or not held; null if held for 10 s, or without "
            "--confirm.",
            nullable=True,
        ),
        number("seconds", "How long the program was watched.", "s"),
        share(
            "cost", "Processor time of nearfar and of DAMON's thread, as a share of one processor."
        ),
        integer("processes", "Watched processes at the end; 0 if the program has ended."),
    ),
    keys=("vm", "method", "storage"),
    metrics={"memory_bytes": "less"},
)

WINDOWS: Final = Rows(
    columns=(
        number("seconds", "Length of the window; 0 with the method `squeeze`.", "s"),
        byte_size(
            "anonymous_bytes",
            "Anonymous memory used in the window; with the method `squeeze`, resident.",
        ),
        byte_size(
            "file_bytes",
            "Mapped files used in the window; with the method `squeeze`, all other memory.",
        ),
        number("faults", "Faults with a memory of `anonymous_bytes` + `file_bytes`.", "a second"),
        share("slowdown", "The slowdown that `faults` cause."),
    ),
    keys=("seconds",),
    metrics={},
)

TABLES: Final = {"rows": ROWS, "windows": WINDOWS}
