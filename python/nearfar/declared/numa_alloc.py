"""Options and rows of ``nearfar numa alloc``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar numa alloc``, by name."""

    machine: MachineLike
    mode: str | Sequence[str] | None
    allocator: str
    nodes: str | Sequence[int] | None
    weights: str | Sequence[int] | None
    from_: int | None
    threads: int
    clean_cache: bool
    one_module: bool


OPTIONS: Final = (
    Option(
        "size",
        type="str | Sequence[str | int]",
        what="Bytes to allocate.",
        required=True,
        metavar="SIZE",
    ),
    Option(
        "machine",
        type="MachineLike",
        what="Machine name or file.",
        default="optane-4node",
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
    Option(
        "mode",
        type="str | Sequence[str] | None",
        what="Modes of placement.",
        shown="all that the machine can be in",
        metavar="MODE",
        choices=names.MODE,
        open=False,
    ),
    Option(
        "allocator",
        type="str",
        what="Allocator.",
        default="vmalloc",
        metavar="NAME",
        choices=(
            (
                "vmalloc",
                "the kernel's `vmalloc`: an array of page pointers and page tables beside the pages",
            ),
            ("user", "a program that touches memory it mapped: page tables beside the pages"),
        ),
        open=False,
    ),
    Option(
        "nodes",
        type="str | Sequence[int] | None",
        what="Nodes to use, such as 0,4.",
        shown="the mode's",
        metavar="COUNT",
    ),
    Option(
        "weights",
        type="str | Sequence[int] | None",
        what="A weight for each of --nodes.",
        shown="by bandwidth",
        metavar="COUNT",
    ),
    Option(
        "from_",
        type="int | None",
        what="Node whose cores run the work.",
        shown="the first with cores",
        metavar="COUNT",
    ),
    Option("threads", type="int", what="Cores used.", default=1, metavar="COUNT"),
    Option(
        "clean_cache", type="bool", what="Memory mode's cache holds no dirty lines.", default=False
    ),
    Option(
        "one_module",
        type="bool",
        what="Limit a core to the bandwidth of the one module that holds its page.",
        default=False,
    ),
)


class Row(TypedDict):
    """A row of ``nearfar numa alloc``."""

    mode: str
    size_bytes: int
    possible: bool
    why_not: str | None
    seconds: float | None
    gb_per_second: float | None
    capacity_bytes: int
    local_dram_bytes: int
    remote_dram_bytes: int
    local_far_bytes: int
    remote_far_bytes: int
    extents: int


ROWS: Final = Rows(
    columns=(
        Column("mode", "string", False, "", "Mode of placement."),
        Column("size_bytes", "int64", False, "bytes", "Bytes asked for."),
        Column("possible", "bool", False, "", "Whether all of it could be allocated."),
        Column("why_not", "string", True, "", "Why not, or null."),
        Column(
            "seconds",
            "double",
            True,
            "s",
            "Time to allocate and clear it, or null when impossible.",
            title="time",
        ),
        Column(
            "gb_per_second",
            "double",
            True,
            "GB/s",
            "Its rate, or null when impossible.",
            title="GB/s",
        ),
        Column("capacity_bytes", "int64", False, "bytes", "What the kernel could have given out."),
        Column(
            "local_dram_bytes",
            "int64",
            False,
            "bytes",
            "On DRAM of the own socket.",
            title="DRAM near",
        ),
        Column(
            "remote_dram_bytes", "int64", False, "bytes", "On DRAM of others.", title="DRAM far"
        ),
        Column(
            "local_far_bytes",
            "int64",
            False,
            "bytes",
            "On persistent or CXL memory of the own socket.",
            title="other near",
        ),
        Column(
            "remote_far_bytes",
            "int64",
            False,
            "bytes",
            "On persistent or CXL memory of others.",
            title="other far",
        ),
        Column("extents", "int64", False, "", "Stretches of pages whose nodes repeat one pattern."),
    ),
    keys=("mode", "size_bytes"),
    metrics={"seconds": "less", "gb_per_second": "more", "capacity_bytes": "more"},
)


class LandedRow(TypedDict):
    """A row of the table ``landed`` of ``nearfar numa alloc``."""

    node: int
    label: str
    kind: str
    local: bool
    bytes: int
    tables_bytes: int
    free_bytes: int
    page_ns: float
    bound_by: str


LANDED_ROWS: Final = Rows(
    columns=(
        Column(
            "node", "int64", False, "", "The topology's number of the node whose medium holds it."
        ),
        Column("label", "string", False, "", "Kind and number, such as `pmem4`."),
        Column("kind", "string", False, "", "`dram`, `pmem` or `cxl`."),
        Column(
            "local", "bool", False, "", "Whether it is on the socket of the cores that allocate."
        ),
        Column(
            "bytes",
            "int64",
            False,
            "bytes",
            "Bytes of the allocation; the kernel's tables are in `tables_bytes`.",
        ),
        Column("tables_bytes", "int64", False, "bytes", "Bytes of page tables and the like."),
        Column(
            "free_bytes", "int64", False, "bytes", "What is left of what the kernel can give out."
        ),
        Column("page_ns", "double", False, "ns", "Time to allocate and clear a page."),
        Column(
            "bound_by",
            "string",
            False,
            "",
            "Which part sets the pace of most of them: `core`, `medium` or `link`.",
        ),
    ),
    keys=("node",),
    metrics={"bytes": "less", "page_ns": "less"},
)
