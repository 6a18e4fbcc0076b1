"""Which mode, nodes and weights to use for a need, and what that gains.

For each candidate: whether the whole capacity can be allocated (:func:`nearfar.numa.alloc`), and
what the working set, which is touched first, then sees (:func:`nearfar.numa.run`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

from nearfar import _engine, numa
from nearfar import machine as machines
from nearfar.declared import numa_plan as declared
from nearfar.errors import NearfarError
from nearfar.provenance import provenance
from nearfar.schema import Column, Rows, takes

_ROWS: Final = Rows(
    columns=(
        Column("vm", "string", False, "", "What is placed."),
        Column("mode", "string", False, "", "Mode of placement."),
        Column("from", "int64", False, "", "Node whose cores run the work."),
        Column("nodes", "string", False, "", "Nodes to give the mode.", python="list[int]"),
        Column("weights", "string", False, "", "A weight for each of them.", python="list[int]"),
        Column("dram_nodes", "string", False, "", "Nodes of DRAM.", python="list[int]"),
        Column("far_nodes", "string", False, "", "Nodes of other memory.", python="list[int]"),
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
            "gb_per_second", "double", True, "GB/s", "Bandwidth over all threads, or null.", "GB/s"
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

#: Lists are text in a table.
TABLES: Final = {"rows": _ROWS}


@takes(declared.OPTIONS)
def plan(capacity: str | int, **options: Unpack[declared.Options]) -> numa.NumaResult[declared.Row]:
    """Choose a mode, with the nodes and weights to go with it.

    Of the candidates that have room and the bandwidth asked for, the one of least latency; if none
    has the bandwidth, the one that has most. Of equals the one that is cleared soonest, then the
    first: plain Linux before the rest.

    Args:
        {options}

    Raises:
        NearfarError: bad input, or nothing on the machine has room.
    """
    values: dict[str, Any] = {**options, "capacity": capacity}
    described = machines.load(values.pop("machine", numa.MACHINE))
    asked = json.loads(_engine.numa_plan(options=values))
    size, bandwidth = asked["capacity"], asked["bandwidth"]
    used = size if asked["working_set"] is None else asked["working_set"]
    if used > size:
        raise NearfarError("--working-set: is larger than --capacity; make it smaller")
    if bandwidth < 0:
        raise NearfarError("--bandwidth: is negative; give GB/s")
    topology = numa.topology(described)
    nodes = topology["nodes"]
    first = next(node["node"] for node in nodes if node["cpus"])
    start = first if asked["from_"] is None else asked["from_"]
    both = {"machine": described, "from_": asked["from_"], "threads": asked["threads"]}
    load = {"pattern": asked["pattern"], "writes": asked["writes"]}
    rows = [
        _ask(mode, chosen, nodes, size, used, start, both, load)
        for mode, chosen in _candidates(nodes, start)
        if mode in topology["modes"]
    ]
    fitting = [_Fitting.of(row) for row in rows if row["possible"]]
    if not fitting:
        most = max(row["capacity_bytes"] for row in rows)
        raise NearfarError(
            f"--capacity: {described.name} gives out at most {most / 2**30:.0f} GiB in any mode; "
            "ask for less or choose another --machine"
        )
    enough = [one for one in fitting if one.gb_per_second >= bandwidth]
    best = (
        min(enough, key=lambda one: (one.latency_ns, one.clear_seconds))
        if enough
        else max(fitting, key=lambda one: one.gb_per_second)
    )
    usual = fitting[0]
    for one in fitting:
        one.row["chosen"] = one is best
        one.row["enough"] = one in enough
        one.row["latency_gain"] = 1 - one.latency_ns / usual.latency_ns
        one.row["bandwidth_gain"] = one.gb_per_second / usual.gb_per_second - 1
    made = provenance(
        "numa", question="plan", options=declared.OPTIONS, values=asked, machine=described
    )
    return numa.NumaResult(made, rows)


@dataclass(frozen=True, eq=False)
class _Fitting:
    """A candidate that has room, so that its figures are known."""

    row: declared.Row
    latency_ns: float
    gb_per_second: float
    clear_seconds: float

    @classmethod
    def of(cls, row: declared.Row) -> _Fitting:
        known = (row["latency_ns"], row["gb_per_second"], row["clear_seconds"])
        return cls(row, *(float(value) for value in known if value is not None))


def _candidates(nodes: Sequence[numa.TopologyNode], start: int) -> list[tuple[str, list[int]]]:
    """Modes with the nodes to give them; the kernel's own behaviour first."""
    socket = next((node["socket"] for node in nodes if node["node"] == start), 0)
    near = [node["node"] for node in nodes if node["socket"] == socket]
    dram = [node["node"] for node in nodes if node["kind"] == "dram"]
    found: list[tuple[str, list[int]]] = [
        ("local", []), ("kmem-dax", []), ("preferred-many", dram), ("alius", []),
        ("memory-mode", []),
    ]  # fmt: skip
    for several in (dram, near, [node["node"] for node in nodes]):
        if len(several) > 1:
            found += [("interleave", several), ("weighted-interleave", several)]
    return [item for at, item in enumerate(found) if item not in found[:at]]


def _ask(
    mode: str,
    chosen: list[int],
    nodes: Sequence[numa.TopologyNode],
    size: int,
    used: int,
    start: int,
    both: Mapping[str, Any],
    load: Mapping[str, Any],
) -> declared.Row:
    """A candidate's row, before one is chosen."""
    weights: list[int] = []
    if mode == "weighted-interleave":
        weights = numa.weights(chosen, machine=both["machine"], from_=start, writes=load["writes"])
    answer = {**both, "mode": mode, "nodes": chosen or None, "weights": weights or None}
    room = numa.alloc(size, allocator="user", **answer).rows[0]
    seen = numa.run(f"{used}", **load, **answer).rows[0]
    possible = room["possible"] and seen["possible"]
    return {
        "vm": "program",
        "mode": mode,
        "from": start,
        "nodes": chosen,
        "weights": weights,
        "dram_nodes": [node["node"] for node in nodes if node["kind"] == "dram"],
        "far_nodes": [node["node"] for node in nodes if node["kind"] != "dram"],
        "possible": possible,
        "why_not": room["why_not"],
        "capacity_bytes": room["capacity_bytes"],
        "clear_seconds": room["seconds"],
        "latency_ns": seen["latency_ns"] if possible else None,
        "gb_per_second": seen["gb_per_second"] if possible else None,
        "bound_by": seen["bound_by"] if possible else None,
        "chosen": False,
        "enough": False,
        "latency_gain": None,
        "bandwidth_gain": None,
    }
