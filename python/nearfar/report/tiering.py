"""The tiering study as text: the answers, and means over seeds by policy and phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import tiering_answers as answers
from nearfar import units
from nearfar.declared import tiering as declared
from nearfar.memory_curve import Memory
from nearfar.report.fitted import KEY, Table
from nearfar.schema import default
from nearfar.tiering import (
    PolicyInfo,
    TieringResult,
    fast_memories,
    memory_of,
    of_shown_memory,
    shown_memory,
    tenants,
)

#: Counts in the table of means and in the series.
_Count = Literal[
    "promotions",
    "demotions",
    "demotions_remapped",
    "shadow_copies",
    "shadow_faults",
    "shadow_reclaims",
]
_COUNTS: Final[tuple[_Count, ...]] = get_args(_Count)


def tiering(result: TieringResult) -> RenderableType:
    """The answers, times by size of fast memory if there are several, and a table of means."""
    # With several tenants, the phase also names the tenant.
    rows = answers.by_tenant(answers.means(of_shown_memory(result, result.rows)), "phase")
    memories = fast_memories(result)
    parts: list[RenderableType] = [Text("\n".join(answers.answers(result)), style="bold")]
    title = _title(result, len(memories) > 1)
    # An empty line before the title; a table without a title begins with one already.
    parts += [Text("")] if title else []
    if len(memories) > 1 and len(tenants(rows)) == 1:
        parts.append(by_memory(result, memories))
    table = Table(title, padding=(0, 1, 0, 0))
    table.add_columns(declared.ROWS.heads("policy", "phase"), importance=KEY)
    heads = declared.ROWS.heads(
        "bandwidth_mb_s", "mean_latency_ns", "fast_hit_ratio", *_COUNTS, "hint_faults"
    )
    table.add_columns(heads, justify="right")
    for policy, row in zip(_policies(rows), rows, strict=True):
        table.add_row(
            policy,
            row["phase"],
            units.count(round(row["bandwidth_mb_s"])),
            units.duration(row["mean_latency_ns"]),
            f"{row['fast_hit_ratio'] * 100:.1f} %",
            *(_count(row[key]) for key in _COUNTS),
            _count(row["hint_faults"]),
        )
    parts.append(table)
    # The series is shown only if the user set the number of points.
    if str(result.run["options"]["points"]) != str(default(declared.OPTIONS, "points")):
        parts.append(series(result))
    return Group(*parts)


def _title(result: TieringResult, several: bool) -> str | None:
    """The number of seeds, if above 1, and the fast memory, if ``several`` sizes were run."""
    seeds, memory = len({row["seed"] for row in result.rows}), shown_memory(result)
    parts = [f"Means of {seeds} seeds"] if seeds > 1 else []
    if several and memory is not None:
        parts.append(f"With {memory.full_label} of fast memory")
    return "; ".join(parts) or None


def by_memory(result: TieringResult, memories: Sequence[Memory]) -> Table:
    """The time of an access in the last phase: a row for each size of fast memory."""
    rows = answers.means(result.rows)
    times = {
        (memory_of(row, result.run), row["policy"]): row["mean_latency_ns"]
        for row in rows
        if row["phase"] == rows[-1]["phase"]
    }
    names = list(dict.fromkeys(row["policy"] for row in rows))
    table = Table("Time of an access, by size of fast memory", padding=(0, 1, 0, 0))
    table.add_column(declared.ROWS.head("fast_node_bytes"), justify="right", importance=KEY)
    table.add_columns(map(units.clean, names), justify="right")
    for memory in memories:
        table.add_row(memory.full_label, *(units.duration(times[memory, name]) for name in names))
    return table


def series(result: TieringResult) -> RenderableType:
    """Counts since the start at each point of the run, for the first seed."""
    first = result.rows[0]["seed"]
    points = answers.by_tenant(of_shown_memory(result, result.series), "phase")
    points = [point for point in points if point["seed"] == first]
    table = Table("Over the run: counts since its start", padding=(0, 1, 0, 0))
    heads = declared.SERIES_ROWS.heads
    table.add_columns(heads("policy", "phase"), importance=KEY)
    counts = heads("progress", "bandwidth_mb_s", *_COUNTS, "shadow_bytes")
    table.add_columns(counts, justify="right")
    for policy, point in zip(_policies(points), points, strict=True):
        table.add_row(
            policy,
            point["phase"],
            units.percent(point["progress"]),
            units.count(round(point["bandwidth_mb_s"])),
            *(_count(point[key]) for key in _COUNTS),
            units.size(point["shadow_bytes"]),
        )
    return table


def _policies(rows: Sequence[declared.Row] | Sequence[declared.SeriesRow]) -> list[str]:
    """The policy of each row; empty if the row before has the same."""
    names = [units.clean(row["policy"]) for row in rows]
    return ["" if i and names[i - 1] == name else name for i, name in enumerate(names)]


def _count(value: float) -> str:
    """A count in a few characters: ``982``, ``28.1k``, ``1.24M``."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9995:
            return f"{units.digits(value / factor)}{unit}"
    return units.count(round(value))


def policies(listed: Sequence[PolicyInfo]) -> RenderableType:
    """Each policy with its knobs."""
    parts: list[RenderableType] = []
    for policy in listed:
        parts.append(Text.assemble((policy["name"], "bold"), f": {policy['what']}"))
        refused = policy["refused_live"]  # ``--policy NAME: why not; what to do``
        why = f"no: {refused.split(': ', 1)[1].split(';')[0]}" if refused else "yes"
        parts.append(Text(f"can manage a real program (nearfar run): {why}"))
        if policy["knobs"]:
            table = Table()
            table.add_columns(("knob", "default"), importance=KEY)
            table.add_column("what", overflow="fold", importance=KEY)
            table.add_column("source", overflow="fold")
            for knob in policy["knobs"]:
                table.add_row(knob["name"], knob["default"], knob["what"], knob["source"])
            parts.append(table)
        else:
            parts.append(Text(""))
    return Group(*parts)
