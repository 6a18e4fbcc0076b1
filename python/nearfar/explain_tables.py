"""Columns of ``explain``. ``make declared`` generates ``nearfar.declared.explain`` from them."""

from __future__ import annotations

from typing import Final

from nearfar import regions
from nearfar.columns import integer, number, text
from nearfar.schema import Rows

#: Counts of a region, an address range or a piece of code.
_COUNTS: Final = (
    integer("references", "References; 0 in tables of code, which do not count them."),
    integer("tlb_misses", "Page walks.", title="TLB misses"),
    integer("tlb_second_hits", "First-level TLB misses that hit the second level."),
    integer("faults", "Page faults."),
    integer(
        "first_touches",
        "First references to pages; with `--view machine`, faults that read no device.",
        title="first touch",
    ),
    integer("zero_fills", "Faults on pages that are filled with zeros; 0 with `--view machine`."),
    integer(
        "file_reads",
        "Faults that read a page of a file for the first time; 0 with `--view machine`.",
    ),
    integer(
        "swap_ins",
        "Faults that read a page back from swap; with `--view machine`, all faults that read a "
        "device.",
    ),
    integer(
        "file_rereads", "Faults that read an evicted page of a file again; 0 with `--view machine`."
    ),
    integer(
        "mapped",
        "First references to pages of files in a warm page cache; not counted in `faults`; 0 with "
        "`--view machine`.",
    ),
)
_REGION: Final = text("name", "Name of the memory region.", title="region")
_COSTS: Final = (
    number(
        "ns",
        "Time that this row adds to the mean time of a reference of the program.",
        "ns",
        title="time",
    ),
    number("share", "`ns` as a share of the time that all misses and faults add."),
)
_PLACES: Final = Rows(
    columns=(
        _REGION,
        text(
            "addr_low",
            "Address of the first byte; hexadecimal text in tables.",
            title="addresses",
            python="int",
        ),
        text(
            "addr_high",
            "Address of the byte after the last; hexadecimal text in tables.",
            python="int",
        ),
        *_COUNTS,
        *_COSTS,
    ),
    keys=("name", "addr_low"),
    metrics={"ns": "less"},
)
#: ``make declared`` writes these tables as ``nearfar.declared.explain``.
TABLES: Final = {
    "rows": _PLACES,
    "terms": Rows(
        columns=(
            text("term", "Name of the term."),
            text("part", "Part of the time: address translation (`T_A`) or data (`T_D`)."),
            text(
                "formula",
                "The term in the papers' equation; null with `--view machine`.",
                nullable=True,
            ),
            number(
                "rate",
                "Events of the term per reference; null with `--view machine`.",
                "per reference",
                nullable=True,
            ),
            number(
                "each_ns",
                "Time of one event of the term; null with `--view machine`.",
                "ns",
                nullable=True,
            ),
            _COSTS[0],
            number("share", "`ns` as a share of the time of a reference."),
            number(
                "kernel_share",
                "Share of `ns` that the guest's kernel causes; null where it is not counted, or "
                "without a trace of a virtual machine.",
                nullable=True,
                title="kernel",
            ),
            number(
                "usual_ns",
                "`ns` with 4 KiB pages; null unless the run has `--view machine` and 4 KiB pages, "
                "and another page size is explained.",
                "ns",
                nullable=True,
                title="4 KiB",
            ),
            number(
                "saved_ns",
                "`usual_ns` - `ns`; null if `usual_ns` is.",
                "ns",
                nullable=True,
                title="saved",
            ),
            number(
                "gain",
                "`saved_ns` as a share of the whole time with 4 KiB pages; null if `usual_ns` is.",
                nullable=True,
            ),
        ),
        keys=("term",),
        metrics={"ns": "less"},
    ),
    "sites": Rows(
        columns=(
            _REGION,
            text(
                "addr",
                "Address of the first byte of a block of instructions; null for the sum of all "
                "further blocks.",
                nullable=True,
                title="code",
                python="int",
            ),
            *_COUNTS,
            *_COSTS,
        ),
        keys=("name", "addr"),
        metrics={"ns": "less"},
    ),
    "functions": Rows(
        columns=(
            text("program", "The program that executed the function."),
            text(
                "library",
                "File of the function's code; without one, its memory region.",
                title="library",
            ),
            text("function", "Name of the function; without one, its address in the file."),
            text("file", "Source file.", nullable=True, title="source"),
            integer("line", "Line in the source file.", nullable=True),
            *_COUNTS,
            *_COSTS,
        ),
        keys=("program", "library", "function", "file", "line"),
        metrics={"ns": "less"},
    ),
    "sizes": regions.SIZES,
    "total": Rows(columns=_COUNTS, keys=(), metrics={}),
}
