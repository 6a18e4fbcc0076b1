"""The ``tiering`` study: policies that move pages between fast and slow memory.

SSP (003, Selective Shadow Paging) and what it builds on. The engine simulates a machine with an
event clock (docs/tiering.md); this module asks it and packages the result.

>>> result = tiering("nomad-medium", policy="nomad,ssp", mix="write", scale="1/256", rounds=1)
>>> [(row["policy"], row["phase"]) for row in result.rows]
[('nomad', 'warm-up'), ('nomad', 'round-1'), ('ssp', 'warm-up'), ('ssp', 'round-1')]
"""

from __future__ import annotations

import copy
import json
import shlex
import time
from collections.abc import Callable, Mapping
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
    asked = dict(options)
    described = machines.load(options.get("machine", default(declared.OPTIONS, "machine")))
    asked.pop("machine", None)
    workload = options.get("workload", WORKLOAD) if load is None else load
    trace, workload = trace_of(workload), fspath(workload)
    given = {name: knob_text(value) for name, value in (knobs or {}).items()}
    labelled = _policies(asked.pop("policy", "all"), _knobs(given))
    began = time.monotonic()
    seen: View | None = None
    with ExitStack() as opened:
        if trace is not None:
            filtered = options.get("filter", default(declared.OPTIONS, "filter"))
            seen = opened.enter_context(view(trace, filtered, described, progress))
        answer = json.loads(
            _engine.tiering_run(
                described,
                policies=labelled,
                trace=None if seen is None else seen.path,
                policy_scale=None,
                options=asked | {"workload": workload},
                progress=progress,
            )
        )
    values = answer["options"] | {"policy": [label for label, *_ in labelled]}
    del values["workload"]
    run = provenance(
        "tiering",
        arguments=[trace] if trace is not None else ["--workload", workload],
        options=declared.OPTIONS,
        values=values,
        trace=trace,
        machine=described,
        view=None if seen is None else seen.sentence,
    )
    for key, value in given.items():
        run["command"] += f" --knob {shlex.quote(f'{key}={value}')}"
    run["options"]["knobs"] = given
    whole: TieringRun = {
        **run,
        "workload": workload,
        "footprint_bytes": answer["footprint_bytes"],
        "peak_resident_bytes": answer["peak_resident_bytes"],
        "policy_scale": answer["policy_scale"],
        "node_bytes": dict(zip(answer["nodes"], answer["node_bytes"], strict=True)),
    }
    return TieringResult(whole, answer["rows"], answer["series"], time.monotonic() - began)


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
        kind = item if isinstance(item, type) else type(item)
        label = str(getattr(item, "name", kind.__name__.lower()))
        own = {str(k): str(v) for k, v in getattr(item, "knobs", {}).items()}
        # Every run begins with an object of its own.
        make = item if isinstance(item, type) else _copier(item)
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
