"""The ``tiering`` study: policies that move pages between fast and slow memory.

It reproduces SSP (selective shadow paging, paper 003 in docs/reproduce.md) and the policies that
SSP builds on. The engine simulates a machine with an event clock (docs/tiering.md); this module
resolves options and makes the result.

>>> result = tiering("nomad-medium", policy="nomad,ssp", mix="write", scale="1/256", rounds=1)
>>> [(row["policy"], row["phase"]) for row in result.rows]
[('nomad', 'warm-up'), ('nomad', 'round-1'), ('ssp', 'warm-up'), ('ssp', 'round-1')]
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, TypedDict, TypeVar, Unpack, cast

from nearfar import _engine
from nearfar import machine as machines
from nearfar.declared import names
from nearfar.declared import tiering as declared
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.memory_curve import Memory, in_order, middle
from nearfar.policy import Knobs, by_policy, constructor_of, from_file
from nearfar.policy import Policy as Policy
from nearfar.policy import read_knobs as read_knobs
from nearfar.provenance import Run, of_trace, provenance
from nearfar.result import FolderResult
from nearfar.schema import PolicyLike, Rows, default, knob_text, takes
from nearfar.sizes import list_of
from nearfar.strict import Json

if TYPE_CHECKING:
    import pyarrow

WORKLOAD: Final[str] = default(declared.OPTIONS, "workload")


class Knob(TypedDict):
    """A knob of a policy; ``kind`` is the type of its value."""

    name: str
    kind: str
    default: str
    what: str
    source: str


class PolicyInfo(TypedDict):
    """The registry's description of a policy."""

    name: str
    what: str
    follows: str
    leaves_out: str
    not_for: str
    foresees: bool
    refused_live: str | None
    knobs: list[Knob]


class TieringRun(Run, total=False):
    """The record of a tiering run."""

    workload: str
    #: Of several traces, the record of each.
    traces: list[Run]
    footprint_bytes: int
    #: None if pages are never freed.
    peak_resident_bytes: int | None
    #: Scale of the policies' times and sizes.
    policy_scale: float
    #: Bytes of each node, by its name.
    node_bytes: dict[str, int]


@dataclass(frozen=True)
class TieringResult(FolderResult):
    """The result of a tiering study.

    Attributes:
        run: the record of the run: workload, machine, options, version.
        rows: one per policy x seed x phase (docs/tiering.md describes the keys).
        series: points over the progress of each run.
        wall_seconds: duration of the run; not part of any reproducible output.
    """

    run: TieringRun
    rows: list[declared.Row]
    series: list[declared.SeriesRow]
    wall_seconds: float = field(compare=False, default=0.0)

    shown = "nearfar.report.tiering:tiering"
    page = "nearfar.report.html.tiering:TieringPage"
    chart = "nearfar.report.plots.tiering:draw"
    plain = ("run", "rows", "series")
    columns: ClassVar[Rows] = declared.ROWS
    further: ClassVar[Mapping[str, Rows]] = {"series": declared.SERIES_ROWS}
    in_run = ("wall_seconds",)

    @property
    def series_table(self) -> pyarrow.Table:
        """The time series as a ``pyarrow.Table``."""
        return declared.SERIES_ROWS.table(self.series)

    def total(self, policy: str, count: str, *, rounds_only: bool = False) -> float:
        """A count summed over the phases of ``policy``, the mean over seeds.

        With several sizes of fast memory, at the size that :meth:`view` shows. ``rounds_only``
        leaves out the warm-up.

        Raises:
            NearfarError: no row has that policy.
        """
        rows = [
            row
            for row in of_shown_memory(self, self.rows)
            if row["policy"] == policy and not (rounds_only and row["phase"] == "warm-up")
        ]
        if not rows:
            raise NearfarError(f"total: no policy {policy!r} in this result")
        counts = [cast("Mapping[str, float]", row)[count] for row in rows]
        return sum(map(float, counts)) / len({row["seed"] for row in rows})


#: Rows or points of the time series.
AnyRow = TypeVar("AnyRow", declared.Row, declared.SeriesRow)


def memory_scale(run: TieringRun) -> float:
    """The scale of a run's memory; a trace is not scaled."""
    return 1.0 if {"trace", "traces"} & run.keys() else run.get("policy_scale", 1.0)


def tenants(rows: Iterable[AnyRow]) -> list[str]:
    """The programs that share the machine, in their order."""
    return list(dict.fromkeys(row["workload"] for row in rows))


def memory_of(row: declared.Row | declared.SeriesRow, run: TieringRun) -> Memory:
    """The size of fast memory of a row; at full scale, for a generated workload."""
    return Memory(round(row["fast_node_bytes"] / memory_scale(run)), row["fast_fraction"])


def fast_memories(result: TieringResult) -> list[Memory]:
    """The sizes of fast memory, smallest first."""
    return in_order(memory_of(row, result.run) for row in result.rows)


def shown_memory(result: TieringResult) -> Memory | None:
    """The size of fast memory to show first; None if there are no rows."""
    return middle(fast_memories(result))


def of_shown_memory(result: TieringResult, rows: Iterable[AnyRow]) -> list[AnyRow]:
    """The ``rows`` with the size of fast memory that is shown first."""
    memory = shown_memory(result)
    return [row for row in rows if memory_of(row, result.run) == memory]


def policies() -> list[PolicyInfo]:
    """The built-in policies, in the order of the registry.

    ``follows``: the paper or kernel source; ``leaves_out``: what of it is missing; ``not_for``:
    when not to use the policy; ``foresees``: whether it knows future references, as a bound;
    ``refused_live``: why it cannot manage a real program (None if it can).
    """
    known: list[PolicyInfo] = json.loads(_engine.tiering_policies())
    return known


def workloads() -> dict[str, str]:
    """The generated workloads, each with a one-line summary."""
    return dict(names.WORKLOAD)


def trace_of(load: str | PathLike[str]) -> Path | None:
    """The trace that ``load`` names; None if it is a generated workload or the file of one."""
    path = Path(load)
    if path.suffix == ".toml":
        return None
    is_path = "/" in fspath(load) or path.suffix == ".trace" or path.is_dir()
    return path if is_path or not isinstance(load, str) else None


@takes(declared.OPTIONS)
def tiering(
    *loads: str | PathLike[str],
    knobs: Knobs | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> TieringResult:
    """Run the tiering study.

    Args:
        loads: the option ``workload``. Traces are not scaled; instead, policies are scaled from
            the 27 GiB that they are tuned for to the size of the traces.
        knobs: values by ``policy.knob``.
        progress: called regularly with the number of accesses done.
        {options}

    A policy is a name, a Python file (``mine.py``), or a class or object that implements
    :class:`Policy`.

    Raises:
        NearfarError: bad input.
    """
    began = time.monotonic()
    given = loads or _listed(options.get("workload", WORKLOAD))
    traces = [trace for trace in map(trace_of, given) if trace is not None]
    if traces and len(traces) < len(given):
        raise NearfarError(
            "--workload: traces and generated workloads do not run together, as their memory "
            "has different scales; give one kind"
        )
    workloads = [fspath(load) for load in given]
    values: dict[str, object] = {**options, "workload": workloads}
    machine = machines.load(options.get("machine", default(declared.OPTIONS, "machine")))
    values.pop("machine", None)
    texts = {name: knob_text(value) for name, value in (knobs or {}).items()}
    policies = _policies(values.pop("policy", "all"), by_policy(texts))
    filtered = options.get("filter", default(declared.OPTIONS, "filter"))
    with ExitStack() as stack:
        views = [stack.enter_context(view(trace, filtered, machine, progress)) for trace in traces]
        text = _engine.tiering_run(
            machine,
            policies=list(policies.values()),
            traces=[opened.path for opened in views],
            policy_scale=None,  # from the sizes of the traces, or the option `scale`
            options=values,
            progress=progress,
        )
    answer: Json = json.loads(text)
    recorded = answer["options"] | {"policy": list(policies)}
    workload = ",".join(workloads)
    run = provenance(
        "tiering",
        arguments=traces or ["--workload", workload],
        options=declared.OPTIONS,
        values={name: value for name, value in recorded.items() if name != "workload"},
        trace=traces[0] if len(traces) == 1 else None,
        machine=machine,
        view="; ".join(dict.fromkeys(opened.sentence for opened in views)) or None,
    )
    for key, value in texts.items():
        run["command"] += f" --knob {shlex.quote(f'{key}={value}')}"
    run["options"]["knobs"] = texts
    whole = {
        **run,
        "workload": workload,
        "footprint_bytes": answer["footprint_bytes"],
        "peak_resident_bytes": answer["peak_resident_bytes"],
        "policy_scale": answer["policy_scale"],
        "node_bytes": dict(zip(answer["nodes"], answer["node_bytes"], strict=True)),
        **({"traces": [of_trace(trace) for trace in traces]} if len(traces) > 1 else {}),
    }
    seconds = time.monotonic() - began
    return TieringResult(cast("TieringRun", whole), answer["rows"], answer["series"], seconds)


def _listed(
    loads: str | PathLike[str] | Sequence[str | PathLike[str]],
) -> Sequence[str | PathLike[str]]:
    """The workloads in the value of the option ``workload``."""
    if not isinstance(loads, str):
        return loads if isinstance(loads, Sequence) else [loads]
    return [loads] if Path(loads).exists() else list_of(loads)


#: A policy as the engine takes it: label, name of a built-in one or constructor of one in Python
#: (and whether that has the hook `foresee`), and knobs.
_EnginePolicy = tuple[str, str | tuple[Callable[[], object], bool], dict[str, str]]


def _policies(
    policy: PolicyLike | Sequence[PolicyLike], knobs: dict[str, dict[str, str]]
) -> dict[str, _EnginePolicy]:
    """The policies, by the names that the record of the run has."""
    given: list[tuple[str, PolicyLike]] = []
    for item in policy if isinstance(policy, list | tuple) else [policy]:
        words = list_of(item) if isinstance(item, str) else []
        words = [name for name, _ in names.POLICY] if words == ["all"] else words
        given += [(word, from_file(word) or word) for word in words] or [("", item)]
    policies: list[tuple[str, _EnginePolicy]] = []
    for word, item in given:
        if isinstance(item, str):
            policies.append((word, (word, word, knobs.get(word, {}))))
            continue
        label, make, defaults = constructor_of(item)
        made = (make, hasattr(item, "foresee"))
        policies.append((word or label, (label, made, defaults | knobs.get(label, {}))))
    labels = [label for _, (label, *_) in policies]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise NearfarError(f"--policy: {twice!r} is given twice")
    unknown = next((name for name in knobs if name not in labels), None)
    if unknown is not None:
        raise NearfarError(
            f"--knob {unknown}: no such policy in this run; it has {', '.join(labels)}"
        )
    return dict(policies)
