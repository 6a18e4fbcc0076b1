"""The ``tiering`` study: policies that move pages between fast and slow memory.

SSP (003, Selective Shadow Paging) and what it builds on. The engine simulates a machine with an
event clock (docs/tiering.md); this module asks it and packages the result.

>>> result = tiering("nomad-medium", policy="nomad,ssp", mix="write", scale="1/256", rounds=1)
>>> [(row["policy"], row["phase"]) for row in result.rows]
[('nomad', 'warm-up'), ('nomad', 'round-1'), ('ssp', 'warm-up'), ('ssp', 'round-1')]
"""

from __future__ import annotations

import copy
import difflib
import json
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, ClassVar, Final, TypedDict, Unpack

from nearfar import _engine
from nearfar import machine as machines
from nearfar.declared import names
from nearfar.declared import tiering as declared
from nearfar.errors import NearfarError
from nearfar.filter import View, view
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, default, knob_text, takes
from nearfar.sizes import list_of
from nearfar.strict import read_toml
from nearfar.tiering_answers import of_memory

#: The default workload.
WORKLOAD: Final[str] = default(declared.OPTIONS, "workload")


#: Methods of a policy that nearfar calls.
HOOKS: Final[Sequence[str]] = _engine.policy_hooks()


class Policy:
    """What a policy written in Python inherits from; docs/tiering.md has the hooks.

    A hook that the class does not define is done by ``base``. A policy is made for the memory of a
    run: its ``start`` asks what that memory can do, makes the policy's threads and returns when
    they run first.

    Attributes:
        base: a built-in policy whose mechanisms are kept, or None to start from nothing.
        knobs: knobs of the base, as text by name.
        watch_unshadowed: on the base ``nomad``, whether a page promoted without a shadow is
            write-protected, so that ``written`` is called at its first write.
    """

    base: ClassVar[str | None] = None
    knobs: ClassVar[Mapping[str, str]] = {}
    watch_unshadowed: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse a method that looks like a misspelt hook: nobody would call it."""
        super().__init_subclass__(**more)
        for name, value in vars(cls).items():
            if not callable(value) or name in HOOKS or name.startswith("_"):
                continue
            if near := difflib.get_close_matches(name, HOOKS, 1, 0.8):
                raise TypeError(f"{cls.__name__}.{name}: no such hook; did you mean {near[0]}?")


class Knob(TypedDict):
    """A knob of a policy; its ``kind`` says how a value is written."""

    name: str
    kind: str
    default: str
    what: str
    source: str


class PolicyInfo(TypedDict):
    """What the registry says of a policy."""

    name: str
    what: str
    follows: str
    leaves_out: str
    not_for: str
    foresees: bool
    refused_live: str | None
    knobs: list[Knob]


class TieringRun(Run, total=False):
    """How a tiering study was made; bytes of each node by its name."""

    workload: str
    footprint_bytes: int
    #: Null where pages never end.
    peak_resident_bytes: int | None
    policy_scale: float
    node_bytes: dict[str, int]


@dataclass(frozen=True)
class TieringResult(FolderResult):
    """What a tiering study found.

    Attributes:
        run: how it was made: workload, machine, options, version; no times of day.
        rows: one mapping per policy x seed x phase (docs/tiering.md names the keys).
        series: points over the progress of each run.
        wall_seconds: how long it took; kept out of everything that must be the same every time.
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

    @classmethod
    def restore(cls, run: Any, tables: Mapping[str, Any]) -> TieringResult:
        """Read back what :meth:`write` wrote."""
        kept: Any = dict(run)
        seconds = kept.pop("wall_seconds")
        return cls(kept, tables["result"].to_pylist(), tables["series"].to_pylist(), seconds)

    def _run(self) -> Mapping[str, Any]:
        return {**self.run, "wall_seconds": round(self.wall_seconds, 3)}

    def _tables(self) -> Mapping[str, Any]:
        return {"result": self.table, "series": self.series_table}

    @property
    def series_table(self) -> Any:
        """The time series as a ``pyarrow.Table``."""
        return declared.SERIES_ROWS.table(self.series)

    def total(self, policy: str, count: str, *, rounds_only: bool = False) -> float:
        """Return a count summed over the phases of ``policy``, the mean over seeds.

        With several sizes of fast memory: with the one that :meth:`view` shows.

        Raises:
            NearfarError: no row is of that policy.
        """
        rows: list[Mapping[str, Any]] = [
            row
            for row in of_memory(self.to_dict(), self.rows)
            if row["policy"] == policy and not (rounds_only and row["phase"] == "warm-up")
        ]
        if not rows:
            raise NearfarError(f"total: no policy {policy!r} in this result")
        return sum(float(row[count]) for row in rows) / len({row["seed"] for row in rows})


def policies() -> list[PolicyInfo]:
    """Every built-in policy, in the order of the registry.

    Each has its ``name``, ``what`` it is, what it ``follows`` and ``leaves_out``, what it is
    ``not_for``, why it cannot run under a real program (``refused_live``, None if it can), and its
    ``knobs`` with their defaults and sources.
    """
    found: list[PolicyInfo] = json.loads(_engine.tiering_policies())
    return found


def workloads() -> dict[str, str]:
    """Names of the generated workloads, each with a one-line summary."""
    return dict(names.WORKLOAD)


def trace_of(load: str | PathLike[str]) -> Path | None:
    """The trace that is meant; None where it is the name of a generated workload."""
    path = Path(load)
    looks_so = "/" in fspath(load) or path.suffix == ".trace" or path.is_dir()
    return path if looks_so or not isinstance(load, str) else None


@takes(declared.OPTIONS)
def tiering(
    load: str | PathLike[str] | None = None,
    /,
    *,
    knobs: Mapping[str, str | float | bool] | None = None,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> TieringResult:
    """Run the tiering study.

    Args:
        load: the option ``workload``. A trace is never scaled, but policies are: as if the trace
            were the 27 GiB that they were tuned with.
        knobs: values by ``policy.knob``, as the policy writes them or as text.
        progress: called now and then with the accesses done.
        {options}

    A policy is a name, or a class or object that follows :class:`Policy`.

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    asked, began = _Asked.of(load, options, knobs), time.monotonic()
    answer = _answer(asked, None, progress)
    return _result(asked, answer, answer["rows"], answer["series"], time.monotonic() - began)


# --- in parts: a study whose seeds are run apart, by several processes


def pieces(
    *,
    knobs: Mapping[str, str | float | bool] | None = None,
    **options: Unpack[declared.Options],
) -> dict[int, float]:
    """What a study can be split into: its seeds, and how much work each is.

    Raises:
        NearfarError: bad input, as :func:`tiering`.
    """
    asked = _Asked.of(None, options, knobs)
    seeds: list[int] = json.loads(
        _engine.tiering_options(asked.machine, options=asked.values, traced=asked.trace is not None)
    )["seeds"]
    # One that is named twice would be one piece, and has two runs.
    return dict.fromkeys(seeds, 1.0) if len(set(seeds)) == len(seeds) else {}


def part(
    only: Sequence[int],
    *,
    knobs: Mapping[str, str | float | bool] | None = None,
    **options: Unpack[declared.Options],
) -> dict[str, Any]:
    """Run a study of some of its :func:`pieces` alone; gives plain values for :func:`joined`."""
    return _answer(_Asked.of(None, options, knobs), only, None)


def joined(
    parts: Sequence[tuple[Sequence[int], Mapping[str, Any]]],
    seconds: float,
    *,
    knobs: Mapping[str, str | float | bool] | None = None,
    **options: Unpack[declared.Options],
) -> TieringResult:
    """What :func:`tiering` gives, of parts that have every seed of the study once.

    Args:
        parts: the seeds of each, and what :func:`part` gave.
        seconds: how long they took together.
    """
    asked = _Asked.of(None, options, knobs)
    seeds = list(pieces(knobs=knobs, **options))
    rows, series = (_in_order(seeds, parts, name) for name in ("rows", "series"))
    return _result(asked, parts[0][1], rows, series, seconds)


def _in_order(
    seeds: Sequence[int], parts: Sequence[tuple[Sequence[int], Mapping[str, Any]]], name: str
) -> list[Any]:
    """The rows of all parts as the study has them: seeds are what varies fastest but for phases."""
    runs: dict[int, list[list[Any]]] = {}
    for only, answer in parts:
        own = [seed for seed in seeds if seed in set(only)]
        rows, phases = answer[name], {row["phase"] for row in answer["rows"]}
        # Every run of a study has equally many.
        each = len(rows) * len(phases) // len(answer["rows"])
        cut = [rows[at : at + each] for at in range(0, len(rows), each)]
        runs |= {seed: cut[at :: len(own)] for at, seed in enumerate(own)}
    ordered = zip(*(runs[seed] for seed in seeds), strict=True)
    return [row for of_seeds in ordered for run in of_seeds for row in run]


@dataclass(frozen=True)
class _Asked:
    """What a study is asked: its machine, its load, its policies, and what the engine reads."""

    machine: machines.Machine
    trace: Path | None
    workload: str
    knobs: dict[str, str]
    policies: list[_Made]
    filtered: str
    values: dict[str, Any]

    @classmethod
    def of(
        cls,
        load: str | PathLike[str] | None,
        options: declared.Options,
        knobs: Mapping[str, str | float | bool] | None,
    ) -> _Asked:
        load = options.get("workload", WORKLOAD) if load is None else load
        values: dict[str, Any] = dict(options)
        machine = machines.load(options.get("machine", default(declared.OPTIONS, "machine")))
        values.pop("machine", None)
        given = {name: knob_text(value) for name, value in (knobs or {}).items()}
        labelled = _policies(values.pop("policy", "all"), _knobs(given))
        filtered = options.get("filter", default(declared.OPTIONS, "filter"))
        values["workload"] = fspath(load)
        return cls(machine, trace_of(load), fspath(load), given, labelled, filtered, values)


def _answer(
    asked: _Asked, only: Sequence[int] | None, progress: Callable[[int], None] | None
) -> dict[str, Any]:
    """What the engine says, of some seeds alone or of all."""
    seen: View | None = None
    with ExitStack() as opened:
        if asked.trace is not None:
            seen = opened.enter_context(view(asked.trace, asked.filtered, asked.machine, progress))
        text = _engine.tiering_run(
            asked.machine,
            policies=asked.policies,
            trace=None if seen is None else seen.path,
            policy_scale=None,
            options=asked.values,
            progress=progress,
            only=only,
        )
    return {**json.loads(text), "view": None if seen is None else seen.sentence}


def _result(
    asked: _Asked,
    answer: Mapping[str, Any],
    rows: list[declared.Row],
    series: list[declared.SeriesRow],
    seconds: float,
) -> TieringResult:
    """The result of what the engine said; but for the rows, each part of a study says the same."""
    values = answer["options"] | {"policy": [label for label, *_ in asked.policies]}
    del values["workload"]
    run = provenance(
        "tiering",
        arguments=[asked.trace] if asked.trace is not None else ["--workload", asked.workload],
        options=declared.OPTIONS,
        values=values,
        trace=asked.trace,
        machine=asked.machine,
        view=answer["view"],
    )
    for key, value in asked.knobs.items():
        run["command"] += f" --knob {shlex.quote(f'{key}={value}')}"
    run["options"]["knobs"] = asked.knobs
    whole: TieringRun = {
        **run,
        "workload": asked.workload,
        "footprint_bytes": answer["footprint_bytes"],
        "peak_resident_bytes": answer["peak_resident_bytes"],
        "policy_scale": answer["policy_scale"],
        "node_bytes": dict(zip(answer["nodes"], answer["node_bytes"], strict=True)),
    }
    return TieringResult(whole, rows, series, seconds)


def read_knobs(path: str | Path) -> dict[str, str]:
    """Read a TOML file of ``[policy]`` tables into values by ``policy.knob``.

    Raises:
        NearfarError: the file cannot be read or holds something else.
    """
    tables = read_toml(Path(path), "a file of knobs", "docs/tiering.md")
    values: dict[str, str] = {}
    for policy, knobs in tables.items():
        if not isinstance(knobs, dict):
            raise NearfarError(f"{path} key {policy}: write it under a table such as [nomad]")
        for name, value in knobs.items():
            if isinstance(value, dict | list):
                raise NearfarError(f"{path} key {policy}.{name}: give one value")
            values[f"{policy}.{name}"] = knob_text(value)
    return values


_Made = tuple[str, str | None, Callable[[], Any] | None, dict[str, str]]


def _policies(given: Any, knobs: dict[str, dict[str, str]]) -> list[_Made]:
    items = given if isinstance(given, list | tuple) else [given]
    made: list[_Made] = []
    for item in items:
        if isinstance(item, str):
            words = list_of(item)
            chosen = [name for name, _ in names.POLICY] if words == ["all"] else words
            made.extend((name, name, None, knobs.get(name, {})) for name in chosen)
            continue
        label, make, own = made_of(item)
        made.append((label, None, make, own | knobs.get(label, {})))
    labels = [label for label, *_ in made]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise NearfarError(f"--policy: {twice!r} is given twice")
    unknown = next((policy for policy in knobs if policy not in labels), None)
    if unknown is not None:
        raise NearfarError(
            f"--knob {unknown}: no such policy in this run; it has {', '.join(labels)}"
        )
    return made


def made_of(policy: Any) -> tuple[str, Callable[[], Any], dict[str, str]]:
    """What a class or object that follows :class:`Policy` is called, what makes it, and its knobs.

    Whatever it is asked for, a run or a process, begins with an object of its own.
    """
    kind = policy if isinstance(policy, type) else type(policy)
    label = str(getattr(policy, "name", kind.__name__.lower()))
    own = {str(k): str(v) for k, v in getattr(policy, "knobs", {}).items()}
    return label, policy if isinstance(policy, type) else _copier(policy), own


def _copier(item: Any) -> Callable[[], Any]:
    return lambda: copy.deepcopy(item)


def _knobs(values: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for key, value in values.items():
        policy, dot, name = key.partition(".")
        if not (policy and dot and name):
            raise NearfarError(f"--knob {key!r}: write policy.knob=value, as in tpp.pagevec=15")
        found.setdefault(policy, {})[name] = value
    return found
