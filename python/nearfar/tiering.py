"""The ``tiering`` study: policies that move pages between fast and slow memory.

Paper 003 (Selective Shadow Paging) and what it builds on. The engine simulates a machine with an
event clock (docs/tiering.md); this module asks it and packages the result.

>>> result = tiering("nomad-medium", policy="nomad,ssp", mix="write", scale="1/256", rounds=1)
>>> [(row["policy"], row["phase"]) for row in result.rows]
[('nomad', 'warm-up'), ('nomad', 'round-1'), ('ssp', 'warm-up'), ('ssp', 'round-1')]
"""

from __future__ import annotations

import copy
import hashlib
import json
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from nearfar import _engine
from nearfar import machine as machines
from nearfar.errors import NearfarError
from nearfar.filter import View, view
from nearfar.result import FolderResult
from nearfar.schema import Rows
from nearfar.sizes import parse_bytes, parse_memory

#: What a study runs with unless told otherwise.
MACHINE = "cxl-a"
WORKLOAD = "nomad-medium"
POLICY = "all"
SCALE = "1/64"
PATTERNS = ("scrambled-zipf", "zipf")
PLACEMENTS = ("uniform", "hottest-first")

#: Counts of a row, in the order of the columns.
COUNTS = (
    "promotions",
    "demotions",
    "demotions_remapped",
    "demotions_copied",
    "shadow_copies",
    "shadow_faults",
    "shadow_reclaims",
    "aborts",
    "hint_faults",
    "write_faults",
    "bytes_migrated",
    "shadow_bytes_peak",
    "fast_pages",
)
_REALS = ("seconds", "bandwidth_mb_s", "mean_latency_ns", "fast_hit_ratio", "progress")


class Policy:
    """What a policy written in Python inherits from; docs/tiering.md has the hooks.

    A hook that the class does not define is done by ``base``. A policy is made for the memory of a
    run: its ``start`` asks what that memory can do, makes the policy's threads and answers when
    they run first.

    Attributes:
        base: a built-in policy whose mechanisms are kept, or None to start from nothing.
        knobs: knobs of the base, as text by name.
        watch_unshadowed: on the base ``nomad``, whether a page promoted without a shadow is
            write-protected, so that ``written`` is told its first write.
    """

    base: ClassVar[str | None] = None
    knobs: ClassVar[Mapping[str, str]] = {}
    watch_unshadowed: ClassVar[bool] = False


@dataclass(frozen=True)
class TieringResult(FolderResult):
    """What a tiering study found.

    Attributes:
        run: how it was made: workload, machine, options, version; no times of day.
        rows: one mapping per policy x seed x phase (docs/tiering.md names the keys).
        series: points over the progress of each run.
        wall_seconds: how long it took; kept out of everything that must be the same every time.
    """

    run: dict[str, Any]
    rows: list[dict[str, Any]]
    series: list[dict[str, Any]]
    wall_seconds: float = field(compare=False, default=0.0)

    page = "nearfar.report.html.tiering:TieringPage"
    chart = "nearfar.report.plots.tiering:draw"
    columns: ClassVar[Rows] = Rows(
        keys=("workload", "mix", "policy", "phase"),
        metrics={
            "bandwidth_mb_s": "more",
            "mean_latency_ns": "less",
            "seconds": "less",
            "fast_hit_ratio": "more",
            "promotions": "less",
            "demotions": "less",
            "bytes_migrated": "less",
            "hint_faults": "less",
            "write_faults": "less",
            "shadow_faults": "less",
            "aborts": "less",
        },
        seed="seed",
    )

    @classmethod
    def restore(cls, run: dict[str, Any], tables: Mapping[str, Any]) -> TieringResult:
        """The result again that :meth:`write` wrote."""
        kept = dict(run)
        seconds = kept.pop("wall_seconds")
        return cls(kept, tables["result"].to_pylist(), tables["series"].to_pylist(), seconds)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        return {"run": self.run, "rows": self.rows, "series": self.series}

    def _run(self) -> dict[str, Any]:
        return {**self.run, "wall_seconds": round(self.wall_seconds, 3)}

    def _tables(self) -> dict[str, Any]:
        return {"result": self.table, "series": self.series_table}

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        return _table(self.rows)

    @property
    def series_table(self) -> Any:
        """The time series as a ``pyarrow.Table``."""
        return _table(self.series)

    def total(self, policy: str, count: str, *, rounds_only: bool = False) -> float:
        """Answer a count summed over the phases of ``policy``, the mean over seeds.

        Raises:
            NearfarError: no row is of that policy.
        """
        rows = [
            row
            for row in self.rows
            if row["policy"] == policy and not (rounds_only and row["phase"] == "warm-up")
        ]
        if not rows:
            raise NearfarError(f"total: no policy {policy!r} in this result")
        return sum(float(row[count]) for row in rows) / len({row["seed"] for row in rows})


def policies() -> list[dict[str, Any]]:
    """Every built-in policy, in the order of the registry.

    Each has its ``name``, ``what`` it is, what it ``follows`` and ``leaves_out``, what it is
    ``not_for``, and its ``knobs`` with their defaults and sources.
    """
    found: list[dict[str, Any]] = json.loads(_engine.tiering_policies())
    return found


def workloads() -> dict[str, str]:
    """Names of the generated workloads, each with a one-line summary."""
    return dict(_engine.tiering_workloads())


def tiering(
    workload: str | Path = WORKLOAD,
    *,
    policy: str | Policy | type[Policy] | Sequence[str | Policy | type[Policy]] = POLICY,
    machine: machines.MachineLike = MACHINE,
    mix: str = "write",
    pattern: str = "scrambled-zipf",
    placement: str = "uniform",
    rounds: int | None = None,
    scale: str | float = SCALE,
    seeds: int | Sequence[int] = 1,
    fast: str | None = None,
    slow: str | None = None,
    rss: str | None = None,
    wss: str | None = None,
    huge: bool = False,
    knobs: Mapping[str, str | float | bool] | None = None,
    cost_scale: float = 1.0,
    filter: str = "cache",  # noqa: A002
    threads: int = 0,
    points: int = 40,
    progress: Callable[[int], None] | None = None,
) -> TieringResult:
    """Run the tiering study.

    Args:
        workload: a name of :func:`workloads`, or a trace folder.
        policy: names of :func:`policies`, ``all``, classes or objects that follow
            :class:`Policy`.
        machine: a machine, or name or path of its file, with two to four nodes and ``[cost]``.
        mix: of a generated workload's rounds: ``read``, ``write``, ``mixed`` (1:1 by operation) or
            ``split`` (1:1 by page: half of the pages are only read, the others only written).
        pattern: ``scrambled-zipf`` or ``zipf``, both of YCSB.
        placement: of the most popular pages: ``uniform`` or ``hottest-first``.
        rounds: rounds after the warm-up, 4 by default; replays of a trace, 1 by default.
        scale: ``1/64`` of the memory and of the work of a generated workload, on a machine as
            much smaller; times and sizes of policies shrink with it. A trace is never scaled, but
            policies are: as if the trace were the 27 GiB that they were tuned with.
        seeds: how many (1, 2, ...), or which.
        fast: size of the fastest node in place of the machine's: ``30%`` of the program's memory,
            or bytes at full scale.
        slow: the same of the slowest node.
        rss: memory that a generated workload maps, at full scale, in place of its own.
        wss: the part of it that is used, the last one, in place of its own.
        huge: map memory as huge pages of 2 MiB.
        knobs: values by ``policy.knob``, as the policy writes them or as text.
        cost_scale: all costs of kernel primitives times this.
        filter: which references of a trace reach memory: ``cache`` (those that miss the machine's
            caches), ``cache-write-backs`` or ``none`` (all of them count) (:mod:`nearfar.filter`).
        threads: runs at the same time, 0 for one a core. A policy in Python makes it 1.
        points: points of the time series in each phase.
        progress: called now and then with the accesses done.

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    described = machines.load(machine)
    path = Path(workload)
    trace = path if "/" in str(workload) or path.suffix == ".trace" or path.is_dir() else None
    if trace is None and isinstance(workload, Path):
        trace = path
    for name, value, known in (
        ("--pattern", pattern, PATTERNS),
        ("--placement", placement, PLACEMENTS),
    ):
        if value not in known:
            raise NearfarError(f"{name}: {value!r}; choose one of {', '.join(known)}")
    given = {name: _text(value) for name, value in (knobs or {}).items()}
    labelled = _policies(policy, _knobs(given))
    share = parse_scale(scale)
    chosen = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    if not chosen or any(not 0 <= seed < 2**64 for seed in chosen) or len(chosen) > 10_000:
        raise NearfarError(f"--seeds: {seeds!r}; give 1 to 10,000 seeds from 0 to 2^64 - 1")
    count = rounds if rounds is not None else (4 if trace is None else 1)
    if not 0 <= count <= 1000 or (trace is not None and count < 1):
        raise NearfarError(f"--rounds: {count} rounds; give 1 to 1000")
    began = time.monotonic()
    seen: View | None = None
    with ExitStack() as opened:
        if trace is not None:
            seen = opened.enter_context(view(trace, filter, described, progress))
        answer = json.loads(
            _engine.tiering_run(
                described,
                policies=[
                    (label, name, None if make is None else make, values)
                    for label, name, make, values in labelled
                ],
                workload=None if trace is not None else str(workload),
                trace=None if seen is None else seen.path,
                mix=mix,
                scrambled=pattern == "scrambled-zipf",
                hottest_first=placement == "hottest-first",
                rounds=count,
                scale=1.0 if trace is not None else share,
                policy_scale=None,
                seeds=chosen,
                fast=_size(fast, "--fast"),
                slow=_size(slow, "--slow"),
                rss_bytes=None if rss is None else parse_bytes(rss, "--rss"),
                wss_bytes=None if wss is None else parse_bytes(wss, "--wss"),
                huge=huge,
                cost_scale=cost_scale,
                threads=threads,
                points=points,
                progress=progress,
            )
        )
    told = {"workload": str(workload), "mix": mix if trace is None else "trace"}
    rows = [_placed(row, told) for row in answer["rows"]]
    series = [_placed(point, told) for point in answer["series"]]
    options = {
        "policy": [label for label, *_ in labelled],
        "knobs": given,
        "mix": mix,
        "pattern": pattern,
        "placement": placement,
        "rounds": count,
        "scale": str(scale) if trace is None else None,
        "seeds": chosen,
        "fast": fast,
        "slow": slow,
        "rss": rss,
        "wss": wss,
        "huge": huge,
        "cost_scale": cost_scale,
        "filter": filter if trace is not None else None,
    }
    run: dict[str, Any] = {
        "study": "tiering",
        "workload": str(workload),
        "machine": described.name,
        "machine_description": described.to_dict(),
        "options": options,
        "footprint_bytes": answer["pages"] * 4096,
        "policy_scale": answer["policy_scale"],
        "node_bytes": dict(zip(answer["nodes"], answer["node_bytes"], strict=True)),
        "version": _engine.__version__,
    }
    if trace is not None and seen is not None:
        run["view"] = seen.sentence
        run["trace_json_sha256"] = hashlib.sha256((trace / "trace.json").read_bytes()).hexdigest()
    return TieringResult(run, rows, series, time.monotonic() - began)


def parse_scale(scale: str | float) -> float:
    """Read ``1/64``, ``0.5`` or a number above 0.

    Raises:
        NearfarError: it is none of these.
    """
    try:
        share = float(Fraction(scale))
    except (ValueError, ZeroDivisionError, OverflowError):
        share = 0.0
    if not 0 < share <= 16:
        raise NearfarError(f"--scale: {str(scale)[:40]!r} is not a share; write for example 1/64")
    return share


def read_knobs(path: str | Path) -> dict[str, str]:
    """Read a TOML file of ``[policy]`` tables into values by ``policy.knob``.

    Raises:
        NearfarError: the file cannot be read or holds something else.
    """
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise NearfarError(f"{path}: {error}; give a TOML file of [policy] tables") from None
    values: dict[str, str] = {}
    for policy, knobs in tables.items():
        if not isinstance(knobs, dict):
            raise NearfarError(f"{path} key {policy}: write it under a table such as [nomad]")
        for name, value in knobs.items():
            if isinstance(value, dict | list):
                raise NearfarError(f"{path} key {policy}.{name}: give one value")
            values[f"{policy}.{name}"] = _text(value)
    return values


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_Made = tuple[str, str | None, Callable[[], Any] | None, dict[str, str]]


def _policies(given: Any, knobs: dict[str, dict[str, str]]) -> list[_Made]:
    items = given if isinstance(given, list | tuple) else [given]
    made: list[_Made] = []
    for item in items:
        if isinstance(item, str):
            words = [word.strip() for word in item.split(",")]
            names = [policy["name"] for policy in policies()] if words == ["all"] else words
            made.extend((name, name, None, knobs.get(name, {})) for name in names)
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


def _size(text: str | None, flag: str) -> tuple[float, bool] | None:
    if text is None:
        return None
    if "%" in text:
        size = parse_memory(text)
        if len(size) != 1:
            raise NearfarError(f"{flag}: {text[:40]!r}; give one size, such as 30%")
        return (float(size[0].value), True)
    return (float(parse_bytes(text, flag)), False)


def _placed(row: dict[str, Any], told: dict[str, str]) -> dict[str, Any]:
    """The row with workload and mix after the policy."""
    return {"policy": row["policy"], **told, **{k: v for k, v in row.items() if k != "policy"}}


def _table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow

    def kind(name: str) -> Any:
        if name in ("policy", "workload", "mix", "phase"):
            return pyarrow.string()
        if name == "seed":
            return pyarrow.uint64()
        return pyarrow.float64() if name in _REALS else pyarrow.int64()

    schema = pyarrow.schema([(name, kind(name)) for name in rows[0]])
    return pyarrow.Table.from_pylist(rows, schema=schema)
