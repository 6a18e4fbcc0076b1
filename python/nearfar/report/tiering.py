"""The tiering study as text: means over seeds, a row per policy and phase."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared.tiering import OPTIONS, ROWS, SERIES_ROWS
from nearfar.report.fitted import KEY, Table
from nearfar.schema import default

Result = Mapping[str, Any]

#: The counts that the table shows.
_COUNTS: Final = (
    "promotions",
    "demotions",
    "demotions_remapped",
    "shadow_copies",
    "shadow_faults",
    "shadow_reclaims",
    "hint_faults",
)


def means(result: Result) -> list[Mapping[str, Any]]:
    """Each policy and phase with the mean over seeds of everything that is a number."""
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in result["rows"]:
        groups.setdefault((row["policy"], row["phase"]), []).append(row)
    return [
        {
            key: sum(row[key] for row in rows) / len(rows)
            if isinstance(value, int | float)
            else value
            for key, value in rows[0].items()
        }
        for rows in groups.values()
    ]


def headline(result: Result) -> str:
    """Which policy is quickest in the last phase, and how it compares with the others."""
    rows = means(result)
    last = rows[-1]["phase"]
    final = [row for row in rows if row["phase"] == last and row["policy"] != "oracle"]
    if not final:
        return f"{last}: the bound alone was run."
    best = max(final, key=lambda row: float(row["bandwidth_mb_s"]))
    rate = units.count(round(best["bandwidth_mb_s"]))
    text = f"{last}: {best['policy']} is quickest with {rate} MiB/s"
    others = [
        f"{best['bandwidth_mb_s'] / row['bandwidth_mb_s']:.2f}x {row['policy']}"
        for row in final
        if row is not best and row["bandwidth_mb_s"] > 0
    ]
    return text + (f", {', '.join(others)}." if others else ".")


def tiering(result: Result) -> RenderableType:
    """The finding and a table of means: pages moved up and down, of those down the remapped ones,
    shadows made, lost by a write (fault) and by need (reclaim), hint faults.
    """
    seeds = len({row["seed"] for row in result["rows"]})
    title = None if seeds == 1 else f"Means of {seeds} seeds"
    table = Table(title, padding=(0, 1, 0, 0))
    for head in ROWS.heads("policy", "phase"):
        table.add_column(head, importance=KEY)
    for head in ROWS.heads("bandwidth_mb_s", "mean_latency_ns", "fast_hit_ratio", *_COUNTS):
        table.add_column(head, justify="right")
    before = None
    for row in means(result):
        table.add_row(
            Text(units.clean(row["policy"]) if row["policy"] != before else ""),
            row["phase"],
            units.count(round(row["bandwidth_mb_s"])),
            units.duration(row["mean_latency_ns"]),
            f"{row['fast_hit_ratio'] * 100:.1f} %",
            *(_count(row[key]) for key in _COUNTS),
        )
        before = row["policy"]
    parts: list[RenderableType] = [Text(headline(result), style="bold"), table]
    # Points that were asked for are shown; the usual ones are for the page and the files.
    if str(result["run"]["options"]["points"]) != str(default(OPTIONS, "points")):
        parts.append(series(result))
    return Group(*parts)


#: Counts since the start that :func:`series` shows.
_OVER_TIME: Final = (
    "promotions",
    "demotions",
    "demotions_remapped",
    "shadow_copies",
    "shadow_faults",
    "shadow_reclaims",
)


def series(result: Result) -> RenderableType:
    """Counts since the start at each point of the run, of the first seed."""
    first = result["rows"][0]["seed"]
    table = Table("Over the run: counts since its start", padding=(0, 1, 0, 0))
    for head in SERIES_ROWS.heads("policy", "phase"):
        table.add_column(head, importance=KEY)
    for head in SERIES_ROWS.heads("progress", "bandwidth_mb_s", *_OVER_TIME, "shadow_bytes"):
        table.add_column(head, justify="right")
    before = None
    for point in result["series"]:
        if point["seed"] == first:
            table.add_row(
                Text(units.clean(point["policy"]) if point["policy"] != before else ""),
                point["phase"],
                units.percent(point["progress"]),
                units.count(round(point["bandwidth_mb_s"])),
                *(_count(point[key]) for key in _OVER_TIME),
                units.size(point["shadow_bytes"]),
            )
            before = point["policy"]
    return table


def _count(value: float) -> str:
    """A count in a few characters: ``982``, ``28.1k``, ``1.24M``."""
    for factor, unit in ((1e6, "M"), (1e3, "k")):
        if value >= factor * 0.9995:
            return f"{units.digits(value / factor)}{unit}"
    return units.count(round(value))


def policies(found: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Every policy with its knobs."""
    parts: list[RenderableType] = []
    for policy in found:
        parts.append(Text.assemble((policy["name"], "bold"), f": {policy['what']}"))
        if policy["knobs"]:
            table = Table()
            table.add_column("knob", importance=KEY)
            table.add_column("default", importance=KEY)
            table.add_column("what", overflow="fold", importance=KEY)
            table.add_column("source", overflow="fold")
            for knob in policy["knobs"]:
                table.add_row(knob["name"], knob["default"], knob["what"], knob["source"])
            parts.append(table)
        else:
            parts.append(Text(""))
    return Group(*parts)
