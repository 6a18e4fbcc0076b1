"""Which mode, nodes and weights to use for a need, and what that gains.

Each candidate is asked whether the whole capacity can be had (:func:`nearfar.numa.alloc`) and what
the working set, which is touched first, then sees (:func:`nearfar.numa.run`).
"""

from __future__ import annotations

import json
from typing import Any, Unpack

from nearfar import _engine, numa
from nearfar import machine as machines
from nearfar.declared import numa_plan as declared
from nearfar.errors import NearfarError
from nearfar.provenance import provenance
from nearfar.schema import takes


@takes(declared.OPTIONS)
def plan(capacity: str | int, **options: Unpack[declared.Options]) -> numa.NumaResult:
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
    fitting = [row for row in rows if row["possible"]]
    if not fitting:
        most = max(row["capacity_bytes"] for row in rows)
        raise NearfarError(
            f"--capacity: {described.name} gives out at most {most / 2**30:.0f} GiB in any mode; "
            "ask for less or choose another --machine"
        )
    enough = [row for row in fitting if row["gb_per_second"] >= bandwidth]
    best = (
        min(enough, key=lambda row: (row["latency_ns"], row["clear_seconds"]))
        if enough
        else max(fitting, key=lambda row: row["gb_per_second"])
    )
    usual = fitting[0]
    for row in rows:
        row["chosen"] = row is best
        row["enough"] = bool(row["possible"]) and row["gb_per_second"] >= bandwidth
        row["latency_gain"] = row["bandwidth_gain"] = None
        if row["possible"]:
            row["latency_gain"] = 1 - row["latency_ns"] / usual["latency_ns"]
            row["bandwidth_gain"] = row["gb_per_second"] / usual["gb_per_second"] - 1
    made = provenance(
        "numa", question="plan", options=declared.OPTIONS, values=asked, machine=described
    )
    return numa.NumaResult(made, rows)


def _candidates(nodes: list[dict[str, Any]], start: int) -> list[tuple[str, list[int]]]:
    """Modes with the nodes to tell them; the kernel's own behaviour first."""
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
    nodes: list[dict[str, Any]],
    size: int,
    used: int,
    start: int,
    both: dict[str, Any],
    load: dict[str, Any],
) -> dict[str, Any]:
    """A candidate's row."""
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
    }
