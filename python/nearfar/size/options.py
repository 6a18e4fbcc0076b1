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
        what="Accepted slowdown against memory for the whole resident set.",
    ),
    Option(
        "ram",
        "str | None",
        "Memory available to the program and its zram: 200M, or 60% of its peak; instead of the "
        "memory that is enough.",
        shown="as much as is enough",
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
        "Also say which setting of huge pages the kernel should have (docs/thp.md).",
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
            "Memory that the program needs, at the advised page size: with swap, the smallest with "
            "which it is at most `slowdown` slower; without, at least all of its private memory.",
        ),
        share("slowdown", "How much longer the program takes with this memory than with all."),
        byte_size(
            "peak_bytes",
            "Peak resident set at the advised page size: private memory and mapped files, without "
            "other pages of the page cache.",
        ),
        byte_size("locked_bytes", "Peak locked memory (`mlock`)."),
        byte_size(
            "thrashes_below_bytes",
            "Memory below which it takes over twice as long; null if it never does.",
            nullable=True,
        ),
        byte_size("advised_page_bytes", "The advised page size.", title="page"),
        byte_size("settable_page_bytes", "The page size that `--emit` sets."),
        text("mechanism", "How it is set: `base`, `mthp`, `thp`."),
        share(
            "gain",
            "Time that the page size saves once memory is filled; of the whole run with `--whole`.",
        ),
        share("gain_error", "Error of `gain`."),
        share("start_gain", "Time that the page size saves while memory is filled."),
        share(
            "start_share",
            "The part of the run, with 4 KiB pages, in which memory is filled: faults that raise "
            "its peak, and first reads of files.",
        ),
        byte_size("bloat_bytes", "What the page size adds to the peak of private memory."),
        byte_size("swapped_bytes", "Private memory that does not fit `memory_bytes`."),
        byte_size(
            "zram_bytes",
            "Memory that the swapped pages take in zram; null with another device.",
            nullable=True,
        ),
        byte_size(
            "high_bytes",
            "Limit above which the kernel reclaims (`memory.high`); null without swap, or if it "
            "would save less than a twentieth.",
            nullable=True,
        ),
        byte_size(
            "max_bytes",
            "Limit above which the kernel kills (`memory.max`); null if `no_limit` says why.",
            nullable=True,
        ),
        text("no_limit", "Why no limit is advised.", nullable=True),
        share(
            "sampled_pages",
            "Share of the 4 KiB pages that `capture --sample` recorded; null if all. "
            "`memory_bytes`, `slowdown` and `start_share` are then upper bounds.",
            nullable=True,
        ),
        text("page_why", "The page size in words."),
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
