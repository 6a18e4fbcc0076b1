"""Options and rows of ``nearfar numa run``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar numa run``, by name."""

    machine: MachineLike
    mode: str | Sequence[str] | None
    pattern: str
    writes: str | float
    nodes: str | Sequence[int] | None
    weights: str | Sequence[int] | None
    from_: int | None
    threads: int
    shuffle: bool
    seed: int


OPTIONS: Final = (
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
        "pattern",
        type="str",
        what="Order of a stream's accesses.",
        default="random",
        metavar="NAME",
        choices=(("random", "anywhere in the working set"), ("sequential", "round after round")),
        open=False,
    ),
    Option(
        "writes",
        type="str | float",
        what="Share of a stream's accesses that store.",
        default=0.0,
        metavar="SHARE",
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
        "shuffle",
        type="bool",
        what="Pages lie at random in each node (`page_alloc.shuffle=1`, or long use).",
        default=False,
    ),
    Option("seed", type="int", what="Seed of the shuffle.", default=1, metavar="COUNT"),
)


class Row(TypedDict):
    """A row of ``nearfar numa run``."""

    mode: str
    footprint_bytes: int
    possible: bool
    accesses: float
    store_share: float
    local_dram_share: float
    remote_dram_share: float
    local_far_share: float
    remote_far_share: float
    cache_hit_rate: float | None
    latency_ns: float | None
    gb_per_second: float | None
    bound_by: str | None


ROWS: Final = Rows(
    columns=(
        Column("mode", "string", False, "", "Mode of placement."),
        Column("footprint_bytes", "int64", False, "bytes", "Bytes of the pages touched."),
        Column(
            "possible",
            "bool",
            False,
            "",
            "Whether all of them find memory; nothing else is known when they do not.",
        ),
        Column(
            "accesses",
            "double",
            False,
            "lines",
            "Accesses to memory; 1 for a stream, whose bytes are shares.",
        ),
        Column("store_share", "double", False, "", "Share of accesses that store."),
        Column(
            "local_dram_share",
            "double",
            False,
            "",
            "Share of accesses on DRAM of the own socket.",
            title="DRAM near",
        ),
        Column(
            "remote_dram_share", "double", False, "", "Share on DRAM of others.", title="DRAM far"
        ),
        Column(
            "local_far_share",
            "double",
            False,
            "",
            "Share on persistent or CXL memory of the own socket.",
            title="other near",
        ),
        Column(
            "remote_far_share",
            "double",
            False,
            "",
            "Share on persistent or CXL memory of others.",
            title="other far",
        ),
        Column(
            "cache_hit_rate",
            "double",
            True,
            "",
            "Share of accesses that memory mode's cache answers, or null.",
            title="cache hits",
        ),
        Column(
            "latency_ns",
            "double",
            True,
            "ns",
            "Time of an access on average when the machine is idle, or null.",
        ),
        Column(
            "gb_per_second",
            "double",
            True,
            "GB/s",
            "Bandwidth over all threads, or null.",
            title="GB/s",
        ),
        Column(
            "bound_by", "string", True, "", "What sets the pace: `cores`, a node's label or `link`."
        ),
    ),
    keys=("mode", "footprint_bytes"),
    metrics={"latency_ns": "less", "gb_per_second": "more", "cache_hit_rate": "more"},
    seed="seed",
)


class NodesRow(TypedDict):
    """A row of the table ``nodes`` of ``nearfar numa run``."""

    node: int
    label: str
    read_bytes: float
    written_bytes: float
    busy: float


NODES_ROWS: Final = Rows(
    columns=(
        Column("node", "int64", False, "", "The topology's number."),
        Column("label", "string", False, "", "Kind and number, such as `pmem4`."),
        Column("read_bytes", "double", False, "bytes", "Read from the medium."),
        Column("written_bytes", "double", False, "bytes", "Written to the medium."),
        Column("busy", "double", False, "", "Share of the time that the medium is busy."),
    ),
    keys=("node",),
    metrics={"busy": "less", "read_bytes": "less", "written_bytes": "less"},
)
