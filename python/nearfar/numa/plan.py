"""Which mode, nodes and weights to use for a need, and what that gains.

Each candidate is asked whether the whole capacity can be had (:func:`nearfar.numa.alloc`) and what
the working set, which is touched first, then sees (:func:`nearfar.numa.run`).
"""

from __future__ import annotations

from typing import Any

from nearfar import machine as machines
from nearfar import numa
from nearfar.errors import NearfarError
from nearfar.sizes import parse_bytes


def plan(
    capacity: str | int,
    *,
    working_set: str | int | None = None,
    bandwidth: float = 0.0,
    writes: float = 0.0,
    pattern: str = "random",
    threads: int = 1,
    machine: machines.MachineLike = numa.MACHINE,
    origin: int | None = None,
) -> numa.NumaResult:
    """Choose a mode, with the nodes and weights to go with it.

    Of the candidates that have room and the bandwidth asked for, the one of least latency; if none
    has the bandwidth, the one that has most. Of equals the one that is cleared soonest, then the
    first: plain Linux before the rest.

    Args:
        capacity: bytes that must fit, or text such as ``500G``.
        working_set: bytes in use at a time, touched first; ``capacity`` by default.
        bandwidth: GB/s that are needed over all threads.
        writes: share of accesses that store.
        pattern: ``random`` or ``sequential``.
        threads: cores at work.
        machine, origin: see :func:`nearfar.numa.alloc`.

    Raises:
        NearfarError: bad input, or nothing on the machine has room.
    """
    size = parse_bytes(capacity, "--capacity") if isinstance(capacity, str) else capacity
    hot = size if working_set is None else working_set
    used = parse_bytes(hot, "--working-set") if isinstance(hot, str) else hot
    if used > size:
        raise NearfarError("--working-set: is larger than --capacity; make it smaller")
    if not bandwidth >= 0:
        raise NearfarError("--bandwidth: is negative; give GB/s")
    described = machines.load(machine)
    nodes = numa.topology(described)["nodes"]
    first = next(node["node"] for node in nodes if node["cpus"])
    start = first if origin is None else origin
    both = {"machine": described, "origin": origin, "threads": threads}
    load = {"pattern": pattern, "writes": writes}
    asked = (
        _ask(mode, chosen, nodes, size, used, start, both, load)
        for mode, chosen in _candidates(nodes, start)
    )
    rows = [row for row in asked if row is not None]
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
    options = {
        "capacity": size,
        "working_set": used,
        "bandwidth": bandwidth,
        "writes": writes,
        "pattern": pattern,
        "threads": threads,
        "origin": origin,
    }
    words = ["--capacity", str(capacity)]
    return numa.NumaResult(numa.run_of("plan", described, options, words), rows)


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
) -> dict[str, Any] | None:
    """A candidate's row; None where the machine cannot be in the mode."""
    weights: list[int] = []
    if mode == "weighted-interleave":
        weights = numa.weights(chosen, machine=both["machine"], origin=start, writes=load["writes"])
    told = {**both, "modes": [mode], "nodes": chosen, "weights": weights}
    try:
        room = numa.alloc([size], allocator="user", **told).rows[0]
    except NearfarError as error:
        if "cannot be in" in str(error):
            return None
        raise
    seen = numa.run(f"{used}", **load, **told).rows[0]
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
