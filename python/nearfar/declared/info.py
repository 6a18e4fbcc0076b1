"""Options and rows of ``nearfar info``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar info``, by name."""

    reuse: bool
    verify: bool
    filter: str
    machine: MachineLike


OPTIONS: Final = (
    Option("reuse", type="bool", what="Compute reuse distances, the slowest part.", default=True),
    Option(
        "verify",
        type="bool",
        what="Read every file whole first and compare checksums and counts with trace.json.",
        default=False,
    ),
    Option(
        "filter",
        type="str",
        what="References to read: all (`none`), or those that miss the machine's caches.",
        default="none",
        metavar="NAME",
        choices=names.FILTER,
        open=False,
    ),
    Option(
        "machine",
        type="MachineLike",
        what="Machine whose caches filter, by name or file.",
        default="nvme",
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
)


class Row(TypedDict):
    """A row of ``nearfar info``."""

    section: str
    item: str
    quantity: str
    value: str


ROWS: Final = Rows(
    columns=(
        Column("section", "string", False, "", "`trace`, or the key of a table or list."),
        Column("item", "string", False, "", "Which item of a list, or empty."),
        Column("quantity", "string", False, "", "What the value is of."),
        Column("value", "string", False, "", "A number or text, as text."),
    ),
    keys=("section", "item", "quantity"),
    metrics={},
)


class WorkingSetRow(TypedDict):
    """A row of the table ``working-set`` of ``nearfar info``."""

    record: int
    bytes: int
    footprint_bytes: int
    resident_bytes: int | None


WORKING_SET_ROWS: Final = Rows(
    columns=(
        Column(
            "record",
            "int64",
            False,
            "",
            "Records up to the end of the interval.",
            title="at record",
        ),
        Column(
            "bytes",
            "int64",
            False,
            "bytes",
            "Bytes of the distinct 4 KiB pages touched in the interval.",
            title="bytes touched",
        ),
        Column(
            "footprint_bytes",
            "int64",
            False,
            "bytes",
            "Bytes of the distinct 4 KiB pages touched since the start.",
        ),
        Column(
            "resident_bytes",
            "int64",
            True,
            "bytes",
            "Bytes of 4 KiB frames that the program has at the end of the interval; null where the trace does not say when pages end.",
            title="bytes resident",
        ),
    ),
    keys=("record",),
    metrics={"bytes": "less", "footprint_bytes": "less"},
)


class RegionsRow(TypedDict):
    """A row of the table ``regions`` of ``nearfar info``."""

    name: str
    addr_low: int | None
    addr_high: int | None
    pages: int
    records: int
    loads: int
    stores: int
    fetches: int
    kernel_loads: int
    kernel_stores: int


REGIONS_ROWS: Final = Rows(
    columns=(
        Column(
            "name",
            "string",
            False,
            "",
            "File, `[heap]`, `[stack]`, `(anonymous) 0x...`, `page cache: FILE`, `(unnamed)`, or a range.",
            title="region",
        ),
        Column(
            "addr_low",
            "int64",
            True,
            "",
            "First byte of the lowest page last touched under this name; null where regions were taken together.",
        ),
        Column("addr_high", "decimal128", True, "", "Byte after the highest one; may be 2^64."),
        Column("pages", "int64", False, "pages", "Distinct 4 KiB pages touched under this name."),
        Column("records", "int64", False, "", "Records that begin here."),
        Column("loads", "int64", False, "", "Of these, loads of the program."),
        Column("stores", "int64", False, "", "Stores of the program."),
        Column("fetches", "int64", False, "", "Fetches of instructions."),
        Column("kernel_loads", "int64", False, "", "Loads of the kernel for the program."),
        Column("kernel_stores", "int64", False, "", "Stores of the kernel for the program."),
    ),
    keys=("name",),
    metrics={"records": "less", "pages": "less"},
)


class ReuseRow(TypedDict):
    """A row of the table ``reuse`` of ``nearfar info``."""

    distance_log2: int | None
    count: int


REUSE_ROWS: Final = Rows(
    columns=(
        Column(
            "distance_log2",
            "int64",
            True,
            "",
            "k; null for first touches, which have no distance.",
            title="distance",
        ),
        Column("count", "int64", False, "", "Page touches.", title="references"),
    ),
    keys=("distance_log2",),
    metrics={"count": "less"},
)
