"""The ``numa`` study: DRAM, persistent memory and CXL as system memory (paper 004).

Where pages land and how long clearing them takes (:func:`alloc`), what a program then sees
(:func:`run`), how two virtual machines hurt each other in memory mode (:func:`pair`), what to use
for a need (:func:`nearfar.numa.plan.plan`). Machines come from machine files or from this machine's
own description (:func:`describe`). docs/numa.md has the model and every key.

>>> alloc(["80G"], machine="optane-4node", modes=["alius"]).rows[0]["local_dram_bytes"] >> 30
80
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from nearfar import _engine, workload
from nearfar import machine as machines
from nearfar.errors import NearfarError
from nearfar.numa.describe import describe, to_machine
from nearfar.numa.node import Node
from nearfar.numa.table_2 import TABLE_2
from nearfar.result import FolderResult
from nearfar.schema import Rows
from nearfar.sizes import bytes_of, parse_bytes

__all__ = [
    "ALLOCATORS",
    "MACHINE",
    "Node",
    "NumaResult",
    "alloc",
    "describe",
    "modes",
    "pair",
    "published",
    "run",
    "run_of",
    "to_machine",
    "topology",
    "weights",
]

#: The machine that is meant unless another is named: paper 004's.
MACHINE: Final = "optane-4node"
#: Who may allocate.
ALLOCATORS: Final = ("vmalloc", "user")

#: Options that a command is told by, and what they are when it is not.
_FLAGS: Final = {
    "modes": "--mode",
    "nodes": "--nodes",
    "weights": "--weights",
    "origin": "--from",
    "threads": "--threads",
    "pattern": "--pattern",
    "writes": "--writes",
    "working_set": "--working-set",
    "bandwidth": "--bandwidth",
    "overlap": "--overlap",
    "cache": "--cache",
    "seed": "--seed",
}
_USUAL: Final = {"threads": 1, "writes": 0.0, "bandwidth": 0.0, "seed": 1, "pattern": "random"}

#: Rows that may hold no value, and what they hold otherwise.
_NULLABLE: Final = {
    "why_not": "text",
    "bound_by": "text",
    "seconds": "real",
    "gb_per_second": "real",
    "latency_ns": "real",
    "cache_hit_rate": "real",
    "overlap": "real",
    "clear_seconds": "real",
    "latency_gain": "real",
    "bandwidth_gain": "real",
}

Progress = Callable[[int], None] | None


@dataclass(frozen=True)
class NumaResult(FolderResult):
    """What a question found.

    Attributes:
        run: how it was made; no times of day.
        rows: one mapping a case (docs/numa.md names the keys).
    """

    run: dict[str, Any]
    rows: list[dict[str, Any]]

    page = "nearfar.report.html.numa:NumaPage"
    chart = "nearfar.report.plots.numa:draw"
    columns: ClassVar[Mapping[str, Rows]] = {
        "alloc": Rows(
            keys=("mode", "size_bytes"),
            metrics={"seconds": "less", "gb_per_second": "more", "capacity_bytes": "more"},
        ),
        "run": Rows(
            keys=("mode", "footprint_bytes"),
            metrics={"latency_ns": "less", "gb_per_second": "more", "cache_hit_rate": "more"},
            seed="seed",
        ),
        "plan": Rows(
            keys=("mode", "nodes"),
            metrics={"latency_ns": "less", "gb_per_second": "more", "clear_seconds": "less"},
        ),
        "pair": Rows(
            keys=("shuffled", "overlap"),
            metrics={
                "slowdown_a": "less",
                "slowdown_b": "less",
                "together_ns_a": "less",
                "together_ns_b": "less",
                "together_hit_rate_a": "more",
                "together_hit_rate_b": "more",
            },
            seed="seed",
        ),
    }

    @classmethod
    def restore(cls, run: dict[str, Any], tables: Mapping[str, Any]) -> NumaResult:
        """The result again that :meth:`write` wrote."""
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ``--format json`` prints them."""
        return {"run": self.run, "rows": self.rows}

    def _run(self) -> dict[str, Any]:
        return self.to_dict()

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``, without what has rows of its own (``landed``)."""
        import pyarrow

        flat = [_flat(row) for row in self.rows]
        table = pyarrow.Table.from_pylist(flat)
        # Of one type however many values are null.
        for place, name in enumerate(table.column_names):
            if name in _NULLABLE:
                kind = pyarrow.string() if _NULLABLE[name] == "text" else pyarrow.float64()
                table = table.set_column(place, name, table[name].cast(kind))
        return table


def modes() -> dict[str, str]:
    """Names of the modes of placement, with a line on each."""
    return dict(_engine.numa_modes())


def topology(machine: machines.MachineLike = MACHINE) -> dict[str, Any]:
    """Nodes, distances and the kernel's fallback order of each node."""
    one = machines.load(machine)
    answer: dict[str, Any] = json.loads(_engine.numa_topology(one))
    return answer


def alloc(
    sizes: Sequence[str | int],
    *,
    machine: machines.MachineLike = MACHINE,
    modes: Sequence[str] | None = None,
    allocator: str = "vmalloc",
    nodes: Sequence[int] = (),
    weights: Sequence[int] = (),
    origin: int | None = None,
    threads: int = 1,
    clean_cache: bool = False,
) -> NumaResult:
    """How long allocating and clearing takes, where pages land, whether it can be done.

    Args:
        sizes: bytes, or text such as ``80G`` (docs/shell.md has the grammar).
        machine: name or path of a machine file, or a machine.
        modes: of :func:`modes`; all that the machine can be in by default.
        allocator: ``vmalloc`` (the kernel's, as in paper 004) or ``user`` (a program).
        nodes: nodes to use, for the modes that are told (docs/numa.md).
        weights: a weight for each of ``nodes``; in proportion to bandwidth by default.
        origin: the node whose cores allocate; the first with cores by default.
        threads: cores at work.
        clean_cache: memory mode's cache holds no dirty lines.

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    if allocator not in ALLOCATORS:
        raise NearfarError(f"--allocator: {allocator!r} is neither of {', '.join(ALLOCATORS)}")
    one = machines.load(machine)
    asked = [parse_bytes(size, "--size") if isinstance(size, str) else size for size in sizes]
    told: dict[str, Any] = {
        "vmalloc": allocator == "vmalloc",
        "dirty_cache": not clean_cache,
        "nodes": list(nodes),
        "weights": list(weights),
        "origin": origin,
        "threads": threads,
    }

    def one_mode(mode: str) -> list[dict[str, Any]]:
        return [
            json.loads(_engine.numa_alloc(one, mode_name=mode, size=size, **told)) for size in asked
        ]

    options = {**told, "size": asked, "modes": _given(modes)}
    words = ["--size", ",".join(str(size) for size in sizes), "--allocator", allocator]
    return NumaResult(_run("alloc", one, options, words), _each(one_mode, modes))


def run(
    load: str | Path,
    *,
    machine: machines.MachineLike = MACHINE,
    modes: Sequence[str] | None = None,
    pattern: str = "random",
    writes: float = 0.0,
    nodes: Sequence[int] = (),
    weights: Sequence[int] = (),
    origin: int | None = None,
    threads: int = 1,
    shuffle: bool = False,
    seed: int = 1,
    progress: Progress = None,
) -> NumaResult:
    """What a program sees: latency, bandwidth, and where its memory accesses go.

    Args:
        load: a trace folder, a workload (its capture in the current folder, or else the small one
            that comes with the sources), or a size such as ``40G``: a stream over that much memory.
        pattern: ``random`` or ``sequential`` order of a stream.
        writes: share of a stream's accesses that store, 0 to 1.
        threads: cores that run it at once.
        shuffle: pages lie at random in each node (``page_alloc.shuffle=1``, or long use).
        seed: of the shuffle.
        progress: called now and then with the references done.
        machine, modes, nodes, weights, origin: see :func:`alloc`.

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    if pattern not in ("random", "sequential"):
        raise NearfarError(f"--pattern: {pattern!r} is neither random nor sequential")
    if not 0 <= writes <= 1:
        raise NearfarError(f"--writes: {writes} does not lie within 0 to 1")
    one = machines.load(machine)
    trace, size = _load(load)
    told: dict[str, Any] = {
        "random": pattern == "random",
        "writes": writes,
        "nodes": list(nodes),
        "weights": list(weights),
        "origin": origin,
        "threads": threads,
        "shuffle": seed if shuffle else None,
    }

    def one_mode(mode: str) -> list[dict[str, Any]]:
        answer = _engine.numa_run(
            one, mode_name=mode, trace=trace, bytes=size, progress=progress, **told
        )
        return [json.loads(answer)]

    options = {**told, "load": str(load), "modes": _given(modes)}
    return NumaResult(_run("run", one, options, [str(load)]), _each(one_mode, modes))


def pair(
    first: str | Path,
    second: str | Path,
    *,
    machine: machines.MachineLike = MACHINE,
    overlap: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0),
    cache: str | int | None = None,
    origin: int | None = None,
    seed: int = 1,
    progress: Progress = None,
) -> NumaResult:
    """Two virtual machines in memory mode: conflict misses and slowdown, in pieces and shuffled.

    Args:
        first, second: as ``load`` of :func:`run`; sizes are loaded at random.
        overlap: shares, 0 to 1, of the smaller one's pages that share the other's cache lines.
        cache: bytes of DRAM in front of the node; the machine's by default.
        seed: of random loads and of the shuffle.
        progress: called now and then with the accesses of the round under way.
        machine, origin: see :func:`alloc`.

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    one = machines.load(machine)
    (trace_a, bytes_a), (trace_b, bytes_b) = _load(first), _load(second)
    answer = _engine.numa_pair(
        one,
        traces=[trace_a, trace_b],
        bytes=[bytes_a, bytes_b],
        overlaps=list(overlap),
        cache_bytes=parse_bytes(cache, "--cache") if isinstance(cache, str) else cache,
        origin=origin,
        seed=seed,
        progress=progress,
    )
    options = {"overlap": list(overlap), "cache": cache, "origin": origin, "seed": seed}
    return NumaResult(_run("pair", one, options, [str(first), str(second)]), json.loads(answer))


def weights(
    nodes: Sequence[int],
    *,
    machine: machines.MachineLike = MACHINE,
    origin: int | None = None,
    writes: float = 0.0,
) -> list[int]:
    """Weights of interleaving that give ``nodes`` the most bandwidth together.

    Args:
        nodes: the kernel's numbers.
        writes: share of the bytes that are stores.
        machine, origin: see :func:`alloc`.
    """
    one = machines.load(machine)
    told = _engine.numa_weights(one, nodes=list(nodes), origin=origin, writes=writes)
    return list(told)


def run_of(
    question: str, machine: machines.MachineLike, options: Mapping[str, Any], words: Sequence[str]
) -> dict[str, Any]:
    """How a result was made, as :class:`NumaResult` holds it."""
    return _run(question, machines.load(machine), options, words)


def published(found: NumaResult) -> list[dict[str, Any]]:
    """Times of paper 004 to put beside an allocation's; none for another machine or allocator."""
    if found.run["machine"] != MACHINE or not found.run["options"]["vmalloc"]:
        return []
    asked = {row["mode"] for row in found.rows}
    return [
        {"mode": mode, "size_bytes": size << 30, "seconds": seconds}
        for (mode, size), seconds in TABLE_2.items()
        if mode in asked
    ]


def _load(load: str | Path) -> tuple[Path | None, int]:
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


def _each(
    ask: Callable[[str], list[dict[str, Any]]], asked: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Rows of every mode; where none is named, of those that the machine can be in."""
    if asked is not None:
        return [row for mode in asked for row in ask(mode)]
    rows: list[dict[str, Any]] = []
    for mode in modes():
        try:
            rows += ask(mode)
        except NearfarError as error:
            if "cannot be in" not in str(error):
                raise
    return rows


def _run(
    question: str, one: machines.Machine, options: Mapping[str, Any], words: Sequence[str]
) -> dict[str, Any]:
    command = ["nearfar", "numa", question, *words, *one.flags]
    for key, flag in _FLAGS.items():
        value = options.get(key)
        if value not in (None, [], _USUAL.get(key)):
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            command += [flag, text]
    if options.get("random") is False:
        command += ["--pattern", "sequential"]
    if options.get("dirty_cache") is False:
        command.append("--clean-cache")
    if options.get("shuffle") is not None:
        command += ["--shuffle", "--seed", str(options["shuffle"])]
    return {
        "study": "numa",
        "question": question,
        "command": shlex.join(command),
        "machine": one.name,
        "machine_description": one.to_dict(),
        "options": dict(options),
        "version": _engine.__version__,
    }


def _given(values: Sequence[str] | None) -> list[str] | None:
    return None if values is None else list(values)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for a table: pairs become two columns, lists of mappings are left out."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, list) and value and isinstance(value[0], float):
            flat |= {f"{key}_{place}": item for place, item in zip("ab", value, strict=True)}
        elif isinstance(value, list) and not any(isinstance(item, dict) for item in value):
            flat[key] = ",".join(map(str, value))
        elif not isinstance(value, list | dict):
            flat[key] = value
    return flat
