"""Options and rows of ``nearfar explain``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.schema import Column, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar explain``, by name."""

    page: str | int | None
    memory: str | int | None
    storage: str | None
    symbols: str | Sequence[str] | None
    by_region: bool


OPTIONS: Final = (
    Option(
        "page",
        type="str | int | None",
        what="Page size of the row.",
        shown="the fastest one",
        metavar="SIZE",
    ),
    Option(
        "memory",
        type="str | int | None",
        what="Memory size of the row, as given to the run.",
        shown="the largest; by the papers' model the middle one",
        metavar="SIZE",
    ),
    Option(
        "storage",
        type="str | None",
        what="Storage of the row.",
        shown="the run's first",
        metavar="TEXT",
    ),
    Option(
        "symbols",
        type="str | Sequence[str] | None",
        what="Files and folders with symbols: programs and libraries as they were captured, their debug files, perf maps.",
        shown="what the trace names, where it still is the same",
        metavar="TEXT",
    ),
    Option(
        "by_region",
        type="bool",
        what="Also show which page size suits which region; needs a run with `--view machine`.",
        default=False,
    ),
)


class Row(TypedDict):
    """A row of ``nearfar explain``."""

    name: str
    addr_low: int
    addr_high: int
    references: int
    tlb_misses: int
    tlb_second_hits: int
    faults: int
    first_touches: int
    zero_fills: int
    file_reads: int
    swap_ins: int
    file_rereads: int
    mapped: int
    ns: float
    share: float


ROWS: Final = Rows(
    columns=(
        Column("name", "string", False, "", "Its region.", title="region"),
        Column(
            "addr_low",
            "string",
            False,
            "",
            "First byte; in a table as hexadecimal text.",
            title="addresses",
        ),
        Column("addr_high", "string", False, "", "Byte after the last."),
        Column(
            "references", "int64", False, "", "References; 0 of code, whose own are not counted."
        ),
        Column("tlb_misses", "int64", False, "", "Page walks.", title="TLB misses"),
        Column(
            "tlb_second_hits", "int64", False, "", "First-level TLB misses that the second has."
        ),
        Column("faults", "int64", False, "", "Page faults."),
        Column(
            "first_touches",
            "int64",
            False,
            "",
            "References to pages never touched before.",
            title="first touch",
        ),
        Column("zero_fills", "int64", False, "", "Faults on pages that are filled with zeros."),
        Column(
            "file_reads", "int64", False, "", "Faults that read a page of a file the first time."
        ),
        Column("swap_ins", "int64", False, "", "Faults that read a page back from swap."),
        Column("file_rereads", "int64", False, "", "Faults that read a page of a file again."),
        Column(
            "mapped",
            "int64",
            False,
            "",
            "First references to pages of files that a warm page cache held: no faults.",
        ),
        Column(
            "ns",
            "double",
            False,
            "ns",
            "What this adds to the mean time of a reference.",
            title="time",
        ),
        Column("share", "double", False, "", "Its part of all such time."),
    ),
    keys=("name", "addr_low"),
    metrics={"ns": "less"},
)


class TermsRow(TypedDict):
    """A row of the table ``terms`` of ``nearfar explain``."""

    term: str
    part: str
    formula: str | None
    rate: float | None
    each_ns: float | None
    ns: float
    share: float
    usual_ns: float | None
    saved_ns: float | None
    gain: float | None


TERMS_ROWS: Final = Rows(
    columns=(
        Column("term", "string", False, "", "What the time is for."),
        Column("part", "string", False, "", "`T_A` or `T_D`."),
        Column(
            "formula",
            "string",
            True,
            "",
            "The term of the equation. This and the two after it are null of a run with `--view machine`.",
        ),
        Column("rate", "double", True, "per reference", "How often."),
        Column("each_ns", "double", True, "ns", "Time of each."),
        Column(
            "ns",
            "double",
            False,
            "ns",
            "What this adds to the mean time of a reference.",
            title="time",
        ),
        Column("share", "double", False, "", "Its part of `total_ns`."),
        Column(
            "usual_ns",
            "double",
            True,
            "ns",
            "The same with 4 KiB pages. This and the two after it are null but for another size of a run with `--view machine` that has 4 KiB.",
            title="4 KiB",
        ),
        Column("saved_ns", "double", True, "ns", "`usual_ns` - `ns`.", title="saved"),
        Column(
            "gain",
            "double",
            True,
            "",
            "What that is of the whole time with 4 KiB pages: its part of the gain.",
        ),
    ),
    keys=("term",),
    metrics={"ns": "less"},
)


class SitesRow(TypedDict):
    """A row of the table ``sites`` of ``nearfar explain``."""

    name: str
    addr: int | None
    references: int
    tlb_misses: int
    tlb_second_hits: int
    faults: int
    first_touches: int
    zero_fills: int
    file_reads: int
    swap_ins: int
    file_rereads: int
    mapped: int
    ns: float
    share: float


SITES_ROWS: Final = Rows(
    columns=(
        Column("name", "string", False, "", "Its region.", title="region"),
        Column(
            "addr",
            "string",
            True,
            "",
            "First byte of its block of instructions; null: all further ones.",
            title="code",
        ),
        Column(
            "references", "int64", False, "", "References; 0 of code, whose own are not counted."
        ),
        Column("tlb_misses", "int64", False, "", "Page walks.", title="TLB misses"),
        Column(
            "tlb_second_hits", "int64", False, "", "First-level TLB misses that the second has."
        ),
        Column("faults", "int64", False, "", "Page faults."),
        Column(
            "first_touches",
            "int64",
            False,
            "",
            "References to pages never touched before.",
            title="first touch",
        ),
        Column("zero_fills", "int64", False, "", "Faults on pages that are filled with zeros."),
        Column(
            "file_reads", "int64", False, "", "Faults that read a page of a file the first time."
        ),
        Column("swap_ins", "int64", False, "", "Faults that read a page back from swap."),
        Column("file_rereads", "int64", False, "", "Faults that read a page of a file again."),
        Column(
            "mapped",
            "int64",
            False,
            "",
            "First references to pages of files that a warm page cache held: no faults.",
        ),
        Column(
            "ns",
            "double",
            False,
            "ns",
            "What this adds to the mean time of a reference.",
            title="time",
        ),
        Column("share", "double", False, "", "Its part of all such time."),
    ),
    keys=("name", "addr"),
    metrics={"ns": "less"},
)


class FunctionsRow(TypedDict):
    """A row of the table ``functions`` of ``nearfar explain``."""

    program: str
    library: str
    function: str
    file: str | None
    line: int | None
    references: int
    tlb_misses: int
    tlb_second_hits: int
    faults: int
    first_touches: int
    zero_fills: int
    file_reads: int
    swap_ins: int
    file_rereads: int
    mapped: int
    ns: float
    share: float


FUNCTIONS_ROWS: Final = Rows(
    columns=(
        Column("program", "string", False, "", "The program that ran it."),
        Column(
            "library",
            "string",
            False,
            "",
            "The file that it is of, or its region.",
            title="library",
        ),
        Column(
            "function",
            "string",
            False,
            "",
            "Its name; without one the address in the file where it begins.",
        ),
        Column("file", "string", True, "", "Source file.", title="source"),
        Column("line", "int64", True, "", "Line of it."),
        Column(
            "references", "int64", False, "", "References; 0 of code, whose own are not counted."
        ),
        Column("tlb_misses", "int64", False, "", "Page walks.", title="TLB misses"),
        Column(
            "tlb_second_hits", "int64", False, "", "First-level TLB misses that the second has."
        ),
        Column("faults", "int64", False, "", "Page faults."),
        Column(
            "first_touches",
            "int64",
            False,
            "",
            "References to pages never touched before.",
            title="first touch",
        ),
        Column("zero_fills", "int64", False, "", "Faults on pages that are filled with zeros."),
        Column(
            "file_reads", "int64", False, "", "Faults that read a page of a file the first time."
        ),
        Column("swap_ins", "int64", False, "", "Faults that read a page back from swap."),
        Column("file_rereads", "int64", False, "", "Faults that read a page of a file again."),
        Column(
            "mapped",
            "int64",
            False,
            "",
            "First references to pages of files that a warm page cache held: no faults.",
        ),
        Column(
            "ns",
            "double",
            False,
            "ns",
            "What this adds to the mean time of a reference.",
            title="time",
        ),
        Column("share", "double", False, "", "Its part of all such time."),
    ),
    keys=("program", "library", "function", "file", "line"),
    metrics={"ns": "less"},
)


class SizesRow(TypedDict):
    """A row of the table ``sizes`` of ``nearfar explain``."""

    name: str
    page_bytes: int
    ns: float
    saved_ns: float
    saved_share: float
    resident_bytes: int
    added_bytes: int
    advised: bool


SIZES_ROWS: Final = Rows(
    columns=(
        Column("name", "string", False, "", "The region.", title="region"),
        Column("page_bytes", "int64", False, "bytes", "Page size that is switched on for it."),
        Column(
            "ns",
            "double",
            False,
            "ns",
            "What its walks, faults and storage add to the mean time of a reference.",
            title="time",
        ),
        Column(
            "saved_ns", "double", False, "ns", "How much less than with 4 KiB pages.", title="saves"
        ),
        Column(
            "saved_share",
            "double",
            False,
            "",
            "Its part of the whole time with 4 KiB pages.",
            title="gain",
        ),
        Column("resident_bytes", "int64", False, "bytes", "Most private memory of it at once."),
        Column(
            "added_bytes",
            "int64",
            False,
            "bytes",
            "How much more than with 4 KiB pages.",
            title="adds",
        ),
        Column(
            "advised",
            "bool",
            False,
            "",
            "The size that suits it: of those whose pages fit it the one that saves most, and at least 0.1 % of the whole time; else 4 KiB.",
        ),
    ),
    keys=("name", "page_bytes"),
    metrics={"ns": "less", "resident_bytes": "less"},
)


class TotalRow(TypedDict):
    """A row of the table ``total`` of ``nearfar explain``."""

    references: int
    tlb_misses: int
    tlb_second_hits: int
    faults: int
    first_touches: int
    zero_fills: int
    file_reads: int
    swap_ins: int
    file_rereads: int
    mapped: int


TOTAL_ROWS: Final = Rows(
    columns=(
        Column(
            "references", "int64", False, "", "References; 0 of code, whose own are not counted."
        ),
        Column("tlb_misses", "int64", False, "", "Page walks.", title="TLB misses"),
        Column(
            "tlb_second_hits", "int64", False, "", "First-level TLB misses that the second has."
        ),
        Column("faults", "int64", False, "", "Page faults."),
        Column(
            "first_touches",
            "int64",
            False,
            "",
            "References to pages never touched before.",
            title="first touch",
        ),
        Column("zero_fills", "int64", False, "", "Faults on pages that are filled with zeros."),
        Column(
            "file_reads", "int64", False, "", "Faults that read a page of a file the first time."
        ),
        Column("swap_ins", "int64", False, "", "Faults that read a page back from swap."),
        Column("file_rereads", "int64", False, "", "Faults that read a page of a file again."),
        Column(
            "mapped",
            "int64",
            False,
            "",
            "First references to pages of files that a warm page cache held: no faults.",
        ),
    ),
    keys=(),
    metrics={},
)
