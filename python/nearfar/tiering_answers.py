"""Recommendations from a tiering result: policy, and size of fast memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from nearfar import units
from nearfar.declared import tiering as declared
from nearfar.memory_curve import SAME, Memory, MemoryCurve, allowed_slowdown, in_order
from nearfar.tiering import (
    AnyRow,
    TieringResult,
    TieringRun,
    fast_memories,
    memory_of,
    memory_scale,
    of_shown_memory,
    shown_memory,
    tenants,
)

#: The smallest ``policy_scale`` at which policies can be compared. Below it, queues and batches
#: dominate, because they do not shrink with memory and time.
MIN_SCALE: Final = 1 / 256
#: Bounds rather than policies that a kernel can have; they are not compared with others.
_BOUNDS: Final = ("oracle",)
#: Policies of Linux, or of a patch to it (Colloid). Linux moves pages only between memory tiers.
_OF_LINUX: Final = frozenset({"autonuma", "colloid", "tpp"})


def too_small(run: TieringRun) -> str | None:
    """Why a run is too small to compare policies, and what to do; None if it is not."""
    scale = run.get("policy_scale", 1.0)
    if scale >= MIN_SCALE:
        return None
    least = f"1/{round(1 / MIN_SCALE)}"
    text = (
        f"The program is too small to compare policies: it has 1/{units.count(round(1 / scale))} "
        f"of the size that they are tuned for, and needs {least}."
    )
    if memory_scale(run) != 1:
        return f"{text} Use --scale {least} or more."
    copies = run["options"].get("copies", 1) * MIN_SCALE / scale
    # Tolerance for rounding: 4.0000001 is 4 copies.
    needed = math.ceil(copies * (1 - 1e-9))
    return f"{text} Add --copies {needed} (instances side by side), or capture a larger program."


def means(rows: Iterable[declared.Row]) -> list[declared.Row]:
    """One row per size of fast memory, policy, tenant (program) and phase: means over seeds."""
    groups: dict[tuple[object, ...], list[declared.Row]] = {}
    for row in rows:
        size = (row["fast_node_bytes"], row["fast_fraction"])
        key = (*size, row["policy"], row["workload"], row["phase"])
        groups.setdefault(key, []).append(row)
    return [_mean(rows) for rows in groups.values()]


def by_tenant(rows: Sequence[AnyRow], key: Literal["phase", "policy"]) -> list[AnyRow]:
    """The rows; if there are several tenants, ``key`` also names the tenant."""
    if len(tenants(rows)) < 2:
        return list(rows)
    return [cast("AnyRow", {**row, key: f"{row[key]}, {row['workload']}"}) for row in rows]


def _mean(rows: Sequence[declared.Row]) -> declared.Row:
    """A row of means; of counts too, so they may be fractions."""
    mean = {
        key: sum(row[key] for row in rows) / len(rows)  # type: ignore[literal-required]
        if isinstance(value, int | float)
        else value
        for key, value in rows[0].items()
    }
    return cast("declared.Row", mean)


@dataclass(frozen=True)
class Standing:
    """A comparison of the policies in the last phase.

    Attributes:
        memory: the size of fast memory.
        phase: the phase; seeds: number of runs per policy.
        best: the fastest policy, and those that are not significantly slower.
        behind: the others, fastest first, with the ratio of their time to the fastest: mean over
            seeds, minimum and maximum over pairs of runs.
    """

    memory: Memory
    phase: str
    seeds: int
    best: tuple[str, ...]
    behind: tuple[tuple[str, float, float, float], ...]


def standing(result: TieringResult, tenant: str | None = None) -> Standing | None:
    """A comparison of policies at the size of fast memory that is shown first, for a tenant.

    With several seeds, a policy is slower if all its runs are slower than all of the fastest; with
    one seed, if it takes 1 % longer. None if only bounds were run.
    """
    rows = [
        row
        for row in of_shown_memory(result, result.rows)
        if row["policy"] not in _BOUNDS and tenant in (None, row["workload"])
    ]
    memory = shown_memory(result)
    if not rows or memory is None:
        return None
    phase = rows[-1]["phase"]
    runs: dict[str, list[float]] = {}
    for row in rows:
        if row["phase"] == phase:
            runs.setdefault(row["policy"], []).append(float(row["mean_latency_ns"]))
    mean = {name: sum(times) / len(times) for name, times in runs.items()}
    first, *others = sorted(mean, key=lambda name: mean[name])
    best, behind = [first], []
    for name in others:
        ratio = mean[name] / mean[first]
        low = min(runs[name]) / max(runs[first])
        high = max(runs[name]) / min(runs[first])
        several = len(runs[name]) > 1
        if (low <= 1) if several else (ratio < SAME):
            best.append(name)
        else:
            behind.append((name, ratio, low, high))
    return Standing(memory, phase, len(runs[first]), tuple(best), tuple(behind))


def policy_curves(result: TieringResult) -> list[MemoryCurve]:
    """Time in the last phase against fast memory, for each policy; the best policy first.

    The base is the shortest time of any policy with all the program's memory fast. Empty if that
    was not run, if there is only one size or several tenants, or if the run is too small.
    """
    memories, run = fast_memories(result), result.run
    rows = means(result.rows)
    if (
        len(tenants(rows)) > 1
        or len(memories) < 2
        or not _holds_all(memories[-1], run)
        or too_small(run) is not None
    ):
        return []
    times: dict[str, dict[Memory, float]] = {}
    for row in rows:
        if row["phase"] == rows[-1]["phase"]:
            of_policy = times.setdefault(row["policy"], {})
            of_policy[memory_of(row, run)] = row["mean_latency_ns"]
    base = min(of_policy[memories[-1]] for of_policy in times.values())
    limit = allowed_slowdown(result.run, declared.OPTIONS)

    def rank(curve: MemoryCurve) -> tuple[float, float]:
        enough = curve.enough(limit)
        return (math.inf if enough is None else enough.bytes, sum(time for _, time in curve.times))

    curves = [MemoryCurve.of(name, t, base) for name, t in times.items() if name not in _BOUNDS]
    return sorted(curves, key=rank)


def _holds_all(memory: Memory, run: TieringRun) -> bool:
    """Whether fast memory of this size holds the peak resident set."""
    if memory.fraction is not None:
        return memory.fraction >= 1
    whole = run["peak_resident_bytes"] or run["footprint_bytes"]
    return memory.bytes * memory_scale(run) >= whole


def one_tier(result: TieringResult) -> str | None:
    """A note if Linux would by default see one memory tier, in which it moves nothing."""
    nodes = cast(
        "dict[str, dict[str, str]]", result.run.get("machine_description", {}).get("node", {})
    )
    ran = {row["policy"] for row in result.rows} & _OF_LINUX
    if not ran or not nodes or any(node["kind"] != "dram" for node in nodes.values()):
        return None
    return (
        f"Linux counts all DRAM as one memory tier, within which {_listed(sorted(ran))} "
        f"{'moves' if len(ran) == 1 else 'move'} nothing, unless the firmware's HMAT tells the "
        "nodes apart: see /sys/devices/virtual/memory_tiering."
    )


def answers(result: TieringResult) -> list[str]:
    """A sentence each on the policy and on the size of fast memory, if the study covers them."""
    comparison = standing(result)
    if comparison is None:
        return [
            "Only `oracle`, a bound that knows future references, was run: no policy to compare."
            if result.rows
            else "The result has no rows."
        ]
    small = too_small(result.run)
    if small is not None:
        return [small]
    several = len(fast_memories(result)) > 1
    lines = [_standing(comparison, several)]
    if len(names := tenants(result.rows)) > 1:
        lines = [
            f"{units.clean(name)}: {_standing(of_tenant, several)}"
            for name in names
            if (of_tenant := standing(result, name)) is not None
        ]
    curves = policy_curves(result)
    if curves:
        lines.append(_fast_memory(curves, allowed_slowdown(result.run, declared.OPTIONS)))
    note = one_tier(result)
    return [*lines, note] if note else lines


def _standing(comparison: Standing, several: bool) -> str:
    """The fastest policy, and how much slower the others are."""
    memory = comparison.memory
    where = f"With {memory.label} of its memory fast, " if several else ""
    if several and memory.fraction is None:
        where = f"With {memory.label} of fast memory, "
    basis = "" if comparison.phase == "trace" else comparison.phase
    if comparison.seeds > 1:
        basis += f"{', ' if basis else ''}{comparison.seeds} seeds: mean, min to max"
    elif basis:
        basis += ", one seed"
    basis = f" ({basis})" if basis else ""
    names = _listed(comparison.best)
    if not comparison.behind:
        if len(comparison.best) == 1:
            return f"{where}{names} alone was run: nothing to compare it with."
        no = "no" if where else "No"
        return f"{where}{no} difference shown between {names}{basis}."
    behind = ", ".join(_behind(*policy, seeds=comparison.seeds) for policy in comparison.behind)
    if len(comparison.best) == 1:
        return f"{where}{names} is fastest: {behind}{basis}."
    return f"{where}{names} are fastest, with no difference shown between them: {behind}{basis}."


def _behind(name: str, ratio: float, low: float, high: float, seeds: int) -> str:
    """How much faster the best policy is: ``4 % ahead of nomad``, ``2x as fast as none``."""
    if ratio < 1.5:
        spread = f" ({units.percent(low - 1)} to {units.percent(high - 1)})" if seeds > 1 else ""
        return f"{units.percent(ratio - 1)}{spread} ahead of {name}"
    spread = f" ({units.digits(low)} to {units.digits(high)})" if seeds > 1 else ""
    return f"{units.digits(ratio, 2)}x{spread} as fast as {name}"


def _fast_memory(curves: Sequence[MemoryCurve], limit: float) -> str:
    """The smallest fast memory that is enough, by policy; ``limit``: the allowed slowdown."""
    whole, within = curves[0].whole, f"within {units.percent(limit)} of having all of it fast"
    enough = {curve.name: curve.enough(limit) for curve in curves}
    sizes = in_order(memory for memory in enough.values() if memory is not None)
    if not sizes or sizes[0] == whole:
        return (
            f"Fast memory: with less than all of it ({units.size(whole.bytes)}) none runs {within}."
        )

    def policies(memory: Memory | None) -> list[str]:
        return [name for name, needed in enough.items() if needed == memory]

    first, *others = sizes
    rest = [f"{_listed(policies(memory))} with {units.size(memory.bytes)}" for memory in others]
    if never := policies(None):
        rest.append(f"{_listed(never)} never")
    part = "" if first.fraction is None else f" ({first.label} of the program's memory)"
    names = _listed(policies(first))
    verb = "runs" if len(policies(first)) == 1 else "run"
    behind = f"; {', '.join(rest)}" if rest else ""
    return (
        f"Fast memory: with {units.size(first.bytes)}{part} {names} {verb} {within}"
        f" ({units.size(whole.bytes)}){behind}."
    )


def _listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``, safe for a terminal."""
    *first, last = map(units.clean, names)
    return f"{', '.join(first)} and {last}" if first else last
