"""Chooses mode, nodes and weights for a program, and reports the gain.

For each candidate: whether the whole capacity can be allocated (:func:`nearfar.numa.alloc`), and
latency and bandwidth of the working set, which is touched first (:func:`nearfar.numa.run`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack

from nearfar import _engine, numa
from nearfar import machine as machines
from nearfar.columns import byte_size, flag, integer, number, text
from nearfar.declared import numa_plan as declared
from nearfar.errors import NearfarError
from nearfar.provenance import provenance
from nearfar.schema import Rows, takes

_ROWS: Final = Rows(
    columns=(
        text("vm", "The program that is placed."),
        text("mode", "Placement mode."),
        integer("from", "Node whose cores run the program."),
        text("nodes", "Nodes that the mode is given; empty if it takes none.", python="list[int]"),
        text(
            "weights",
            "Interleaving weight of each of `nodes`; empty for modes without weights.",
            python="list[int]",
        ),
        text("dram_nodes", "DRAM nodes of the machine.", python="list[int]"),
        text("far_nodes", "Nodes of the machine with other memory than DRAM.", python="list[int]"),
        flag("possible", "Whether all of `--capacity` can be allocated."),
        text("why_not", "Why `--capacity` cannot be allocated; null if it can.", nullable=True),
        byte_size("capacity_bytes", "Maximum memory that the mode can allocate."),
        number(
            "clear_seconds",
            "Time to allocate and clear `--capacity`; null if that is not possible.",
            "s",
            nullable=True,
            title="to clear",
        ),
        number(
            "latency_ns",
            "Mean latency of an access to the working set; null if not `possible`.",
            "ns",
            nullable=True,
        ),
        number(
            "gb_per_second",
            "Bandwidth of all threads together; null if not `possible`.",
            "GB/s",
            nullable=True,
            title="GB/s",
        ),
        text("bound_by", "What limits the bandwidth; null if not `possible`.", nullable=True),
        flag("chosen", "Whether this candidate is recommended."),
        flag("enough", "Whether the candidate has the bandwidth of `--bandwidth`."),
        number(
            "latency_gain",
            "Share of the latency of the first possible candidate that this one saves; null if "
            "not `possible`.",
            nullable=True,
        ),
        number(
            "bandwidth_gain",
            "Bandwidth gain over the first possible candidate, as a share; null if not `possible`.",
            nullable=True,
        ),
    ),
    keys=("mode", "nodes"),
    metrics={"latency_ns": "less", "gb_per_second": "more", "clear_seconds": "less"},
)

TABLES: Final = {"rows": _ROWS}


class _Values(TypedDict):
    """Options as the engine parses them."""

    capacity: int
    working_set: int | None
    bandwidth: float
    from_: int | None
    threads: int
    pattern: str
    writes: float


@takes(declared.OPTIONS)
def plan(capacity: str | int, **options: Unpack[declared.Options]) -> numa.NumaResult[declared.Row]:
    """Choose a mode with its nodes and weights.

    Of the candidates with enough capacity and bandwidth, the one of least latency; if none has
    enough bandwidth, the one with the most. Ties go to the shortest time to clear, then to the
    first candidate; plain Linux is the first.

    Args:
        {options}

    Raises:
        NearfarError: bad input, or no candidate has enough capacity.
    """
    machine = machines.load(options.pop("machine", numa.MACHINE))
    parsed = _engine.numa_plan(options={**options, "capacity": capacity})
    values: _Values = json.loads(parsed)
    size, bandwidth = values["capacity"], values["bandwidth"]
    working_set = size if values["working_set"] is None else values["working_set"]
    if working_set > size:
        raise NearfarError("--working-set: is larger than --capacity; reduce it")
    if bandwidth < 0:
        raise NearfarError("--bandwidth: is negative; give GB/s")
    topology = numa.topology(machine)
    nodes = topology["nodes"]
    first = next(node["node"] for node in nodes if node["cpus"])
    start = first if values["from_"] is None else values["from_"]
    rows = [
        _row(mode, mode_nodes, nodes, working_set, start, machine, values)
        for mode, mode_nodes in _candidates(nodes, start)
        if mode in topology["modes"]
    ]
    fitting = [_Fitting.of(row) for row in rows if row["possible"]]
    if not fitting:
        largest = max(row["capacity_bytes"] for row in rows)
        raise NearfarError(
            f"--capacity: {machine.name} can allocate at most {largest / 2**30:.0f} GiB in any "
            "mode; reduce it or choose another --machine"
        )
    enough = [candidate for candidate in fitting if candidate.gb_per_second >= bandwidth]
    best = (
        min(enough, key=lambda candidate: (candidate.latency_ns, candidate.clear_seconds))
        if enough
        else max(fitting, key=lambda candidate: candidate.gb_per_second)
    )
    baseline = fitting[0]
    for candidate in fitting:
        candidate.row["chosen"] = candidate is best
        candidate.row["enough"] = candidate in enough
        candidate.row["latency_gain"] = 1 - candidate.latency_ns / baseline.latency_ns
        candidate.row["bandwidth_gain"] = candidate.gb_per_second / baseline.gb_per_second - 1
    run = provenance(
        "numa", question="plan", options=declared.OPTIONS, values=values, machine=machine
    )
    return numa.NumaResult(run, rows)


class _Placement(TypedDict):
    """Options of a candidate, for :func:`nearfar.numa.alloc` and :func:`nearfar.numa.run`."""

    machine: machines.Machine
    mode: str
    nodes: list[int] | None
    weights: list[int] | None
    from_: int | None
    threads: int


@dataclass(frozen=True, eq=False)
class _Fitting:
    """A candidate with enough capacity, whose figures are known."""

    row: declared.Row
    latency_ns: float
    gb_per_second: float
    clear_seconds: float

    @classmethod
    def of(cls, row: declared.Row) -> _Fitting:
        known = (row["latency_ns"], row["gb_per_second"], row["clear_seconds"])
        return cls(row, *(float(value) for value in known if value is not None))


def _candidates(nodes: Sequence[numa.TopologyNode], start: int) -> list[tuple[str, list[int]]]:
    """Modes and their nodes; the kernel's default first."""
    socket = next((node["socket"] for node in nodes if node["node"] == start), 0)
    near = [node["node"] for node in nodes if node["socket"] == socket]
    dram = [node["node"] for node in nodes if node["kind"] == "dram"]
    candidates: list[tuple[str, list[int]]] = [
        ("local", []), ("kmem-dax", []), ("preferred-many", dram), ("alius", []),
        ("memory-mode", []),
    ]  # fmt: skip
    for several in (dram, near, [node["node"] for node in nodes]):
        if len(several) > 1:
            candidates += [("interleave", several), ("weighted-interleave", several)]
    return [item for at, item in enumerate(candidates) if item not in candidates[:at]]


def _row(
    mode: str,
    mode_nodes: list[int],
    nodes: Sequence[numa.TopologyNode],
    working_set: int,
    start: int,
    machine: machines.Machine,
    values: _Values,
) -> declared.Row:
    """The row of a candidate, before the choice."""
    weights: list[int] = []
    if mode == "weighted-interleave":
        weights = numa.weights(mode_nodes, machine=machine, from_=start, writes=values["writes"])
    placement: _Placement = {
        "machine": machine,
        "mode": mode,
        "nodes": mode_nodes or None,
        "weights": weights or None,
        "from_": values["from_"],
        "threads": values["threads"],
    }
    # The default allocator is the kernel's vmalloc, which cannot use movable memory.
    allocated = numa.alloc(values["capacity"], allocator="user", **placement).rows[0]
    seen = numa.run(
        f"{working_set}", pattern=values["pattern"], writes=values["writes"], **placement
    ).rows[0]
    possible = allocated["possible"] and seen["possible"]
    return {
        # ``nearfar emit`` takes names of programs and of VMs from this key.
        "vm": "program",
        "mode": mode,
        "from": start,
        "nodes": mode_nodes,
        "weights": weights,
        "dram_nodes": [node["node"] for node in nodes if node["kind"] == "dram"],
        "far_nodes": [node["node"] for node in nodes if node["kind"] != "dram"],
        "possible": possible,
        "why_not": allocated["why_not"],
        "capacity_bytes": allocated["capacity_bytes"],
        "clear_seconds": allocated["seconds"],
        "latency_ns": seen["latency_ns"] if possible else None,
        "gb_per_second": seen["gb_per_second"] if possible else None,
        "bound_by": seen["bound_by"] if possible else None,
        "chosen": False,
        "enough": False,
        "latency_gain": None,
        "bandwidth_gain": None,
    }
