"""The ``numa`` study: DRAM, persistent memory and CXL as system memory (aliusM, paper 004).

:func:`alloc`: where pages are placed and how long clearing them takes. :func:`run`: latency and
bandwidth of a program. :func:`pair`: interference of two virtual machines in memory mode.
:func:`nearfar.numa.plan.plan`: which mode and nodes to use. Machines come from machine files or
from the kernel's description (:func:`describe`). docs/numa.md has the model and all keys.

>>> alloc(["80G"], machine="optane-4node", mode="alius").rows[0]["local_dram_bytes"] >> 30
80
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypedDict, TypeVar, Unpack, cast

from nearfar import _engine, workload
from nearfar import machine as machines
from nearfar.declared import names, numa_alloc, numa_pair, numa_plan, numa_run
from nearfar.errors import NearfarError
from nearfar.numa.describe import describe, to_machine
from nearfar.numa.node import Node
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Option, Rows, default, takes
from nearfar.sizes import bytes_of

if TYPE_CHECKING:
    import pyarrow

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

#: Table 2 of aliusM (004): published seconds to allocate and clear, by mode and size in GiB.
TABLE_2: Final = {
    ("memory-mode", 80): 64.74,
    ("memory-mode", 700): 581.29,
    ("memory-mode", 1000): 847.93,
    ("memory-mode", 2000): 1805.33,
    ("alius", 80): 19.12,
    ("alius", 700): 258.19,
    ("alius", 1000): 383.88,
    ("alius", 2000): 911.55,
    ("alius", 3000): 2005.21,
}

Progress = Callable[[int], None] | None


class TopologyNode(TypedDict):
    """A node of :func:`topology`; ``modules``: number of its memory modules (DIMMs)."""

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


#: The row type of a question: ``alloc``, ``run``, ``pair`` or ``plan``.
Row = TypeVar("Row", bound=Mapping[str, object])


class AllocRow(numa_alloc.Row):
    """A row of :func:`alloc`, with ``landed``, whose rows are declared as another table."""

    landed: list[numa_alloc.LandedRow]


class RunRow(numa_run.Row):
    """A row of :func:`run`, with ``nodes``, whose rows are declared as another table."""

    nodes: list[numa_run.NodesRow]


@dataclass(frozen=True)
class NumaResult(FolderResult, Generic[Row]):
    """The result of a question: ``alloc``, ``run``, ``pair`` or ``plan``.

    Attributes:
        run: its provenance (:mod:`nearfar.provenance`).
        rows: one per case (docs/numa.md names the keys).
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
    def restore(cls, run: Any, tables: Mapping[str, pyarrow.Table]) -> NumaResult[Row]:
        """Read what :meth:`write` wrote."""
        return cls(run["run"], run["rows"])

    def html(self) -> str:
        """A self-contained HTML page of allocations.

        Raises:
            NearfarError: the result is of another question.
        """
        if self.run["question"] != "alloc":
            raise NearfarError(f"numa {self.run['question']}: has no HTML page")
        description = json.dumps(self.run["machine_description"])
        described = machines.Machine.from_json(self.run["machine"], description)
        return self._html(topology=topology(described), published=published(self))

    def _run(self) -> Mapping[str, object]:
        return self.to_dict()

    @property
    def table(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``, without lists that have tables of their own."""
        return self.columns[self.run["question"]].table([_flat(row) for row in self.rows])


def modes() -> dict[str, str]:
    """Names of the placement modes, each with a one-line summary."""
    return dict(names.MODE)


def topology(machine: machines.MachineLike = MACHINE) -> Topology:
    """Nodes, distances, supported modes, and the kernel's fallback order of each node."""
    topology: Topology = json.loads(_engine.numa_topology(machines.load(machine)))
    return topology


@takes(numa_alloc.OPTIONS)
def alloc(
    size: str | int | Sequence[str | int], **options: Unpack[numa_alloc.Options]
) -> NumaResult[AllocRow]:
    """Whether memory can be allocated, where its pages are placed, and the time to clear them.

    Args:
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    machine, values = _machine({**options, "size": size})
    text = _engine.numa_alloc(machine, options=values)
    return _result("alloc", machine, numa_alloc.OPTIONS, text)


@takes(numa_run.OPTIONS)
def run(
    load: str | PathLike[str], *, progress: Progress = None, **options: Unpack[numa_run.Options]
) -> NumaResult[RunRow]:
    """Latency and bandwidth of a program, and the nodes of its memory accesses.

    Args:
        load: a trace folder; a workload (its capture in the current folder, else the small bundled
            one); or a size such as ``40G``, for a stream over that much memory.
        progress: called now and then with the number of references done.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    machine, values = _machine(options)
    trace, size = _load(load)
    text = _engine.numa_run(machine, trace=trace, bytes=size, options=values, progress=progress)
    return _result("run", machine, numa_run.OPTIONS, text, [load])


@takes(numa_pair.OPTIONS)
def pair(
    first: str | PathLike[str],
    second: str | PathLike[str],
    *,
    progress: Progress = None,
    **options: Unpack[numa_pair.Options],
) -> NumaResult[numa_pair.Row]:
    """Conflict misses and slowdown of two virtual machines in memory mode.

    Args:
        first, second: as ``load`` of :func:`run`; a size means random loads.
        progress: called now and then with the number of accesses of the current round.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    machine, values = _machine(options)
    (trace_a, bytes_a), (trace_b, bytes_b) = _load(first), _load(second)
    text = _engine.numa_pair(
        machine,
        traces=[trace_a, trace_b],
        bytes=[bytes_a, bytes_b],
        options=values,
        progress=progress,
    )
    return _result("pair", machine, numa_pair.OPTIONS, text, [first, second])


def weights(
    nodes: Sequence[int],
    *,
    machine: machines.MachineLike = MACHINE,
    from_: int | None = None,
    writes: float = 0.0,
) -> list[int]:
    """Interleaving weights that maximise the total bandwidth of ``nodes``.

    Args:
        nodes: the kernel's numbers.
        writes: share of the bytes that are stores.
        machine, from_: see :func:`alloc`.
    """
    loaded = machines.load(machine)
    return _engine.numa_weights(loaded, nodes=list(nodes), origin=from_, writes=writes)


def published(result: NumaResult[Row]) -> list[Published]:
    """The times of aliusM (004) for an allocation; empty for another machine or allocator."""
    if result.run["machine"] != MACHINE or result.run["options"]["allocator"] != "vmalloc":
        return []
    modes = {row["mode"] for row in result.rows}
    return [
        {"mode": mode, "size_bytes": size << 30, "seconds": seconds}
        for (mode, size), seconds in TABLE_2.items()
        if mode in modes
    ]


def _load(load: str | PathLike[str]) -> tuple[Path | None, int]:
    """The trace folder of a path or workload, or the bytes of a size."""
    if not isinstance(load, str) or Path(load).exists():
        return Path(load), 0
    size = bytes_of(load)
    if size is not None:
        return None, size
    if load not in workload.names():
        what = f"{load[:60]}: is not a trace folder, a workload, or a size such as 40G"
        raise NearfarError(f"{what}; see nearfar workload list")
    return _captured(load), 0


def _captured(name: str) -> Path:
    """The capture of a built-in workload: in the current folder, else the small bundled one."""
    whole = Path(f"{name}.trace")
    if whole.exists():
        return whole
    try:
        return workload.bundled() / whole
    except NearfarError:
        fix = f"nearfar workload capture {name}"
        raise NearfarError(f"{name}: has no capture here; first run: {fix}", 3) from None


def _machine(options: Mapping[str, object]) -> tuple[machines.Machine, dict[str, object]]:
    """The machine that options name, and the other options."""
    others = dict(options)
    machine = others.pop("machine", MACHINE)
    return machines.load(cast("machines.MachineLike", machine)), others


def _result(
    question: str,
    machine: machines.Machine,
    options: Sequence[Option],
    text: str,
    arguments: Sequence[str | PathLike[str]] = (),
) -> NumaResult[Any]:
    result = json.loads(text)
    run = provenance(
        "numa",
        question=question,
        arguments=arguments,
        options=options,
        values=result["options"],
        machine=machine,
    )
    return NumaResult(run, result["rows"])


def _flat(row: Mapping[str, object]) -> Mapping[str, object]:
    """A row for a table: lists become text."""
    return {
        key: ",".join(map(str, value)) if isinstance(value, list) else value
        for key, value in row.items()
    }
