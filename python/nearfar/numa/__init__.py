"""The ``numa`` study: DRAM, persistent memory and CXL as system memory (aliusM, 004).

Where pages land and how long clearing them takes (:func:`alloc`), what a program then sees
(:func:`run`), how two virtual machines hurt each other in memory mode (:func:`pair`), what to use
for a need (:func:`nearfar.numa.plan.plan`). Machines come from machine files or from this machine's
own description (:func:`describe`). docs/numa.md has the model and every key.

>>> alloc(["80G"], machine="optane-4node", mode="alius").rows[0]["local_dram_bytes"] >> 30
80
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypedDict, TypeVar, Unpack

from nearfar import _engine, workload
from nearfar import machine as machines
from nearfar.declared import names, numa_alloc, numa_pair, numa_plan, numa_run
from nearfar.errors import NearfarError
from nearfar.numa.describe import describe, to_machine
from nearfar.numa.node import Node
from nearfar.numa.table_2 import TABLE_2
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Option, Rows, default, takes
from nearfar.sizes import bytes_of

__all__ = [
    "MACHINE",
    "Node",
    "NumaResult",
    "alloc",
    "describe",
    "modes",
    "pair",
    "published",
    "run",
    "to_machine",
    "topology",
    "weights",
]

#: The default machine: that of aliusM (004).
MACHINE: Final[str] = default(numa_alloc.OPTIONS, "machine")

Progress = Callable[[int], None] | None


class TopologyNode(TypedDict):
    """A node of :func:`topology`."""

    node: int
    label: str
    kind: str
    bytes: int
    socket: int
    cpus: int
    modules: int
    local_read_ns: float
    remote_read_ns: float


class Topology(TypedDict):
    """What :func:`topology` returns."""

    machine: str
    nodes: list[TopologyNode]
    distances: list[list[int]]
    modes: list[str]
    fallback: list[list[int]]


class Published(TypedDict):
    """A point of :func:`published`."""

    mode: str
    size_bytes: int
    seconds: float


#: The rows of a question.
Row = TypeVar("Row", bound=Mapping[str, object])


class AllocRow(numa_alloc.Row):
    """A row of :func:`alloc` with its list, which no table holds."""

    landed: list[numa_alloc.LandedRow]


class RunRow(numa_run.Row):
    """A row of :func:`run` with its list, which no table holds."""

    nodes: list[numa_run.NodesRow]


@dataclass(frozen=True)
class NumaResult(FolderResult, Generic[Row]):
    """What a question found.

    Attributes:
        run: how it was made; no times of day.
        rows: one mapping a case (docs/numa.md names the keys).
    """

    run: Run
    rows: list[Row]

    shown = "nearfar.report.numa:numa"
    page = "nearfar.report.html.numa:NumaPage"
    chart = "nearfar.report.plots.numa:draw"
    columns: ClassVar[Mapping[str, Rows]] = {
        "alloc": numa_alloc.ROWS,
        "run": numa_run.ROWS,
        "plan": numa_plan.ROWS,
        "pair": numa_pair.ROWS,
    }

    @classmethod
    def restore(cls, run: Any, tables: Mapping[str, Any]) -> NumaResult[Any]:
        """Read back what :meth:`write` wrote."""
        return cls(run["run"], run["rows"])

    def html(self) -> str:
        """Draw a self-contained page of allocations.

        Raises:
            NearfarError: the question was another one.
        """
        if self.run["question"] != "alloc":
            raise NearfarError(f"numa {self.run['question']}: has no page of its own")
        description = json.dumps(self.run["machine_description"])
        described = machines.Machine.from_json(self.run["machine"], description)
        return self._html(topology=topology(described), published=published(self))

    def _run(self) -> Mapping[str, Any]:
        return self.to_dict()

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``, without what has rows of its own (``landed``)."""
        return self.columns[self.run["question"]].table([_flat(row) for row in self.rows])


def modes() -> dict[str, str]:
    """Names of the modes of placement, with a line on each."""
    return dict(names.MODE)


def topology(machine: machines.MachineLike = MACHINE) -> Topology:
    """Nodes, distances, modes that it can be in, and the kernel's fallback order of each node."""
    one = machines.load(machine)
    answer: Topology = json.loads(_engine.numa_topology(one))
    return answer


@takes(numa_alloc.OPTIONS)
def alloc(
    size: str | int | Sequence[str | int], **options: Unpack[numa_alloc.Options]
) -> NumaResult[AllocRow]:
    """How long allocating and clearing takes, where pages land, whether it can be done.

    Args:
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    one, values = _machine({**options, "size": size})
    answer = json.loads(_engine.numa_alloc(one, options=values))
    return _result("alloc", one, numa_alloc.OPTIONS, answer)


@takes(numa_run.OPTIONS)
def run(
    load: str | PathLike[str], *, progress: Progress = None, **options: Unpack[numa_run.Options]
) -> NumaResult[RunRow]:
    """What a program sees: latency, bandwidth, and where its memory accesses go.

    Args:
        load: a trace folder, a workload (its capture in the current folder, or else the small one
            that comes with the sources), or a size such as ``40G``: a stream over that much memory.
        progress: called now and then with the references done.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    one, values = _machine({**options})
    trace, size = _load(load)
    answer = json.loads(
        _engine.numa_run(one, trace=trace, bytes=size, options=values, progress=progress)
    )
    return _result("run", one, numa_run.OPTIONS, answer, [load])


@takes(numa_pair.OPTIONS)
def pair(
    first: str | PathLike[str],
    second: str | PathLike[str],
    *,
    progress: Progress = None,
    **options: Unpack[numa_pair.Options],
) -> NumaResult[numa_pair.Row]:
    """Two virtual machines in memory mode: conflict misses and slowdown, in pieces and shuffled.

    Args:
        first, second: as ``load`` of :func:`run`; sizes are loaded at random.
        progress: called now and then with the accesses of the round under way.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    one, values = _machine({**options})
    (trace_a, bytes_a), (trace_b, bytes_b) = _load(first), _load(second)
    answer = json.loads(
        _engine.numa_pair(
            one,
            traces=[trace_a, trace_b],
            bytes=[bytes_a, bytes_b],
            options=values,
            progress=progress,
        )
    )
    return _result("pair", one, numa_pair.OPTIONS, answer, [first, second])


def weights(
    nodes: Sequence[int],
    *,
    machine: machines.MachineLike = MACHINE,
    from_: int | None = None,
    writes: float = 0.0,
) -> list[int]:
    """Weights of interleaving that give ``nodes`` the most bandwidth together.

    Args:
        nodes: the kernel's numbers.
        writes: share of the bytes that are stores.
        machine, from_: see :func:`alloc`.
    """
    one = machines.load(machine)
    outcome = _engine.numa_weights(one, nodes=list(nodes), origin=from_, writes=writes)
    return list(outcome)


def published(found: NumaResult[Any]) -> list[Published]:
    """The times of aliusM (004) for an allocation; none for another machine or allocator."""
    if found.run["machine"] != MACHINE or found.run["options"]["allocator"] != "vmalloc":
        return []
    asked = {row["mode"] for row in found.rows}
    return [
        {"mode": mode, "size_bytes": size << 30, "seconds": seconds}
        for (mode, size), seconds in TABLE_2.items()
        if mode in asked
    ]


def _load(load: str | PathLike[str]) -> tuple[Path | None, int]:
    """A trace folder, the capture of a workload, or bytes."""
    if not isinstance(load, str) or Path(load).exists():
        return Path(load), 0
    size = bytes_of(load)
    if size is not None:
        return None, size
    if load not in workload.names():
        what = f"{load[:60]}: neither a trace folder nor a workload nor a size such as 40G"
        raise NearfarError(f"{what}; see nearfar workload list")
    return _captured(load), 0


def _captured(name: str) -> Path:
    """The capture of a built-in workload: one made here, or the small one of the sources."""
    whole = Path(f"{name}.trace")
    if whole.exists():
        return whole
    try:
        return workload.bundled() / whole
    except NearfarError:
        fix = f"nearfar workload capture {name}"
        raise NearfarError(f"{name}: there is no capture of it here; first run: {fix}", 3) from None


def _machine(options: Mapping[str, Any]) -> tuple[machines.Machine, Mapping[str, Any]]:
    """The machine that options name, and the other options."""
    others = {name: value for name, value in options.items() if name != "machine"}
    return machines.load(options.get("machine", MACHINE)), others


def _result(
    question: str,
    machine: machines.Machine,
    options: Sequence[Option],
    answer: Mapping[str, Any],
    arguments: Sequence[str | PathLike[str]] = (),
) -> NumaResult[Any]:
    made = provenance(
        "numa",
        question=question,
        arguments=arguments,
        options=options,
        values=answer["options"],
        machine=machine,
    )
    return NumaResult(made, answer["rows"])


def _flat(row: Mapping[str, Any]) -> Mapping[str, object]:
    """A row for a table: lists are text."""
    return {
        key: ",".join(map(str, value)) if isinstance(value, list) else value
        for key, value in row.items()
    }
