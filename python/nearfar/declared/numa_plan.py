"""Options and rows of ``nearfar numa plan``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar numa plan``, by name."""

    working_set: str | int | None
    bandwidth: float
    machine: MachineLike
    pattern: str
    writes: str | float
    from_: int | None
    threads: int


OPTIONS: Final = (
    Option(
        "capacity",
        type="str | int",
        what="Bytes that must fit, such as 500G.",
        required=True,
        metavar="SIZE",
    ),
    Option(
        "working_set",
        type="str | int | None",
        what="Bytes in use at a time, touched first.",
        shown="all",
        metavar="SIZE",
    ),
    Option(
        "bandwidth",
        type="float",
        what="Bandwidth that all threads need together, GB/s.",
        default=0.0,
        metavar="NUMBER",
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
        "pattern",
        type="str",
        what="Order of accesses.",
        default="random",
        metavar="NAME",
        choices=(("random", "anywhere in the working set"), ("sequential", "round after round")),
        open=False,
    ),
    Option(
        "writes",
        type="str | float",
        what="Share of accesses that store.",
        default=0.0,
        metavar="SHARE",
    ),
    Option(
        "from_",
        type="int | None",
        what="Node whose cores run the work.",
        shown="the first with cores",
        metavar="COUNT",
    ),
    Option("threads", type="int", what="Cores used.", default=1, metavar="COUNT"),
)

Row = TypedDict(
    "Row",
    {
        "vm": str,
        "mode": str,
        "from": int,
        "nodes": list[int],
        "weights": list[int],
        "dram_nodes": list[int],
        "far_nodes": list[int],
        "possible": bool,
        "why_not": str | None,
        "capacity_bytes": int,
        "clear_seconds": float | None,
        "latency_ns": float | None,
        "gb_per_second": float | None,
        "bound_by": str | None,
        "chosen": bool,
        "enough": bool,
        "latency_gain": float | None,
        "bandwidth_gain": float | None,
    },
)
Row.__doc__ = "A row of ``nearfar numa plan``."


ROWS: Final = Rows(
    columns=(
        Column("vm", "string", False, "", "What is placed."),
        Column("mode", "string", False, "", "Mode of placement."),
        Column("from", "int64", False, "", "Node whose cores run the work."),
        Column("nodes", "string", False, "", "Nodes to give the mode."),
        Column("weights", "string", False, "", "A weight for each of them."),
        Column("dram_nodes", "string", False, "", "Nodes of DRAM."),
        Column("far_nodes", "string", False, "", "Nodes of other memory."),
        Column("possible", "bool", False, "", "Whether the whole capacity can be allocated."),
        Column("why_not", "string", True, "", "Why not, or null."),
        Column("capacity_bytes", "int64", False, "bytes", "What can be given out."),
        Column(
            "clear_seconds",
            "double",
            True,
            "s",
            "Time to allocate and clear it, or null.",
            title="to clear",
        ),
        Column("latency_ns", "double", True, "ns", "Time of an access on average, or null."),
        Column(
            "gb_per_second",
            "double",
            True,
            "GB/s",
            "Bandwidth over all threads, or null.",
            title="GB/s",
        ),
        Column("bound_by", "string", True, "", "What sets the pace, or null."),
        Column("chosen", "bool", False, "", "Whether it is the one to use."),
        Column("enough", "bool", False, "", "Whether it has the bandwidth asked for."),
        Column("latency_gain", "double", True, "", "Latency saved against the first, or null."),
        Column("bandwidth_gain", "double", True, "", "Bandwidth won against the first, or null."),
    ),
    keys=("mode", "nodes"),
    metrics={"latency_ns": "less", "gb_per_second": "more", "clear_seconds": "less"},
)
