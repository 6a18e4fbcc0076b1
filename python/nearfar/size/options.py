"""Options and columns of ``size``.

``make declared`` generates ``nearfar.declared.size`` from them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from nearfar.advise.architectures import ARCHITECTURES
from nearfar.columns import byte_size, share, text
from nearfar.declared import names, paging
from nearfar.schema import Option, Rows

_PAGING: Final = {option.name: option for option in paging.OPTIONS}

OPTIONS: Final = (
    Option(
        "machine",
        "MachineLike | None",
        "Machine name or file.",
        shown=_PAGING["machine"].shown,
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
    Option(
        "swap",
        "str | None",
        "Swap device: a storage of the machine or of a built-in machine, or `none`.",
        shown="what this machine swaps to",
        metavar="STORAGE",
    ),
    replace(
        _PAGING["slowdown"],
        what="Accepted slowdown, compared with memory for the whole resident set.",
    ),
    Option(
        "ram",
        "str | None",
        "Memory for the program and its zram: bytes (200M) or a share of the peak resident set "
        "(60%).",
        shown="enough for --slowdown",
        metavar="SIZE",
    ),
    replace(
        _PAGING["whole"],
        what="Choose the page size by the whole run, including the time in which the program first "
        "fills its memory; otherwise by the time after that.",
    ),
    Option(
        "thp",
        "bool",
        "Also advise the kernel's setting of transparent huge pages (docs/thp.md).",
        default=False,
    ),
    Option(
        "zram_ratio",
        "str | float",
        "Compression ratio of zram. The kernel's documentation expects 2 "
        "(admin-guide/blockdev/zram).",
        default=2.0,
        metavar="RATIO",
    ),
    Option(
        "arch",
        "str",
        "Architecture, which determines the page sizes that can be set.",
        default="x86-64",
        metavar="NAME",
        choices=tuple((name, "") for name in ARCHITECTURES),
        open=False,
    ),
    _PAGING["nested"],
    _PAGING["threads"],
    _PAGING["max_memory"],
)

#: Options of the paging study that ``size`` passes on.
PASSED: Final = tuple(option.name for option in OPTIONS if option.name in _PAGING)

ROWS: Final = Rows(
    columns=(
        text("vm", "The program or virtual machine.", title="program"),
        text("trace", "The trace folder."),
        text("machine", "The machine."),
        text("arch", "The architecture."),
        text("storage", "The swap device; null without one.", nullable=True, title="swap"),
        byte_size(
            "memory_bytes",
            "Memory that the program needs, at the advised page size: with swap, the smallest "
            "with a slowdown of at most `--slowdown`; without swap, at least all private memory; "
            "with `--ram`, what zram leaves of that.",
        ),
        share(
            "slowdown",
            "How much longer the program takes with `memory_bytes` than with enough memory.",
        ),
        byte_size(
            "peak_bytes",
            "Peak resident set at the advised page size: private memory and mapped files, without "
            "other pages of the page cache.",
        ),
        byte_size("locked_bytes", "Peak locked memory (`mlock`)."),
        byte_size(
            "thrashes_below_bytes",
            "Memory below which the program takes over twice as long as with enough memory; null "
            "if it never does, or without swap.",
            nullable=True,
        ),
        byte_size("advised_page_bytes", "The advised page size.", title="page"),
        byte_size("settable_page_bytes", "The page size that `--emit` sets."),
        text(
            "mechanism",
            "How the page size is set: `base` (no huge pages), `mthp` (multi-size THP) or `thp`.",
        ),
        share(
            "gain",
            "Share of time that the page size saves once memory is filled; with `--whole`, of "
            "the whole run.",
        ),
        share("gain_error", "Error of `gain`, plus or minus."),
        share("start_gain", "Share of the time to fill memory that the page size saves."),
        share(
            "start_share",
            "Share of the run's time, with 4 KiB pages, that fills memory: faults that raise the "
            "peak of memory, and first reads of files.",
        ),
        byte_size("bloat_bytes", "Memory that the page size adds to the peak of private memory."),
        byte_size(
            "swapped_bytes", "Private memory that does not fit in `memory_bytes`; 0 without swap."
        ),
        byte_size(
            "zram_bytes",
            "Memory that the swapped pages take in zram; null with another device.",
            nullable=True,
        ),
        byte_size(
            "high_bytes",
            "Limit above which the kernel reclaims (`memory.high`); null without swap, with "
            "`no_limit`, or if it would be less than 5 % below `peak_bytes`.",
            nullable=True,
        ),
        byte_size(
            "max_bytes",
            "Limit above which the kernel kills processes (`memory.max`); null with `no_limit`.",
            nullable=True,
        ),
        text("no_limit", "Why no limit is advised; null if one is.", nullable=True),
        share(
            "sampled_pages",
            "Share of the 4 KiB pages that `capture --sample` recorded; null if all. "
            "`memory_bytes`, `slowdown` and `start_share` are then upper bounds.",
            nullable=True,
        ),
        text("page_why", "The advised page size, and why, in words."),
        text(
            "thp_why",
            "The setting of huge pages to use, and why, in words; null without `--thp`.",
            nullable=True,
        ),
        text("risk", "What the answer does not cover, in words."),
    ),
    keys=("vm", "machine", "storage"),
    metrics={"memory_bytes": "less", "gain": "more"},
)

TABLES: Final = {"rows": ROWS}
