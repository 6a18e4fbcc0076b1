"""Tables of ``diff``, made from its result alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import diff as declared
from nearfar.report.fitted import Table
from nearfar.report.tables import listing

#: Rows that a table shows, largest difference first, unless all are asked for.
SHOWN = 20
_STYLES = {"worse": "bold red", "better": "green"}


def diff(found: Mapping[str, Any], full: bool = False) -> RenderableType:
    """What is better and worse; every row when ``full``."""
    run, rows = found["run"], found["rows"]
    parts: list[RenderableType] = [Text(headline(found), style="bold")]
    for name, (a, b) in run["differs"].items():
        parts.append(Text(units.clean(f"{name}: {a} in A, {b} in B")))
    changed = [row for row in rows if full or row["verdict"] != "unchanged"]
    changed.sort(key=lambda row: -abs(_share(row)))
    shown = changed if full else changed[:SHOWN]
    if shown:
        parts += [Text(""), _table(run, shown)]
    if len(shown) < len(changed):
        parts.append(Text(f"and {len(changed) - len(shown)} more; --full shows all"))
    for name in ("a", "b"):
        only = found[f"only_{name}"]
        if only:
            names = "; ".join(_row_name(row) for row in only[:5])
            more = f"; and {len(only) - 5} more" if len(only) > 5 else ""
            parts.append(Text(units.clean(f"only in {name.upper()}: {names}{more}")))
    return Group(*parts)


def headline(found: Mapping[str, Any]) -> str:
    """How many rows are better, worse and unchanged, by metric."""
    lines = []
    for metric, better in found["run"]["metrics"].items():
        rows = [row for row in found["rows"] if row["metric"] == metric]
        counts = Counter(row["verdict"] for row in rows)
        shares = [row["relative"] for row in rows if row["relative"] is not None]
        mean = f", mean {signed(sum(shares) / len(shares))}" if shares else ""
        lines.append(
            f"{metric} ({better} is better): {counts['better']} better, {counts['worse']} worse, "
            f"{counts['unchanged']} unchanged{mean}"
        )
    return "\n".join(lines)


def signed(share: float | None) -> str:
    """A relative difference: ``+3.1 %``."""
    if share is None:
        return "from 0"
    return f"{'-' if share < 0 else '+'}{units.digits(abs(share) * 100)} %"


def _share(row: Mapping[str, Any]) -> float:
    return float("inf") if row["relative"] is None else float(row["relative"])


def _row_name(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={units.keyed(name, value)}" for name, value in row.items())


def _table(run: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Table:
    several = len(run["metrics"]) > 1
    seeds = any(row["low"] is not None for row in rows)
    known = ["metric"] * several + ["a", "b", "relative"] + ["low"] * seeds + ["verdict"]
    heads = [*run["keys"], *declared.ROWS.heads(*known)]
    listed = []
    for row in rows:
        cells = [units.keyed(name, row[name]) for name in run["keys"]]
        cells += [row["metric"]] if several else []
        cells += [units.digits(row["a"], 6), units.digits(row["b"], 6), signed(row["relative"])]
        if seeds:
            one = row["low"] is None
            cells.append("-" if one else f"{signed(row['low'])} to {signed(row['high'])}")
        listed.append([*cells, row["verdict"]])
    table = listing(f"A: {run['a']}, B: {run['b']}", heads, listed)
    for row, line in zip(rows, table.rows, strict=True):
        line.style = _STYLES.get(row["verdict"])
    return table
