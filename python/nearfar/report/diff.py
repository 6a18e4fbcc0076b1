"""Tables of ``diff``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import diff as declared
from nearfar.diff import DiffResult, DiffRun
from nearfar.report.fitted import Table
from nearfar.report.tables import listing

#: The number of rows that a table shows by default, largest difference first.
SHOWN = 20
_STYLES = {"worse": "bold red", "better": "green"}


def diff(result: DiffResult, full: bool = False) -> RenderableType:
    """The rows that are better or worse; every row if ``full``."""
    run = result.run
    parts: list[RenderableType] = [Text(headline(result), style="bold")]
    for name, (a, b) in run["differs"].items():
        parts.append(Text(units.clean(f"{name}: {a} in A, {b} in B")))
    changed = [row for row in result.rows if full or row["verdict"] != "unchanged"]
    changed.sort(key=lambda row: -abs(_share(row)))
    shown = changed if full else changed[:SHOWN]
    if shown:
        parts += [Text(""), _table(run, shown)]
    if len(shown) < len(changed):
        parts.append(Text(f"and {len(changed) - len(shown)} more; --full shows all"))
    for name, only in (("A", result.only_a), ("B", result.only_b)):
        if only:
            names = "; ".join(
                ", ".join(f"{key}={units.keyed(key, value)}" for key, value in row.items())
                for row in only[:5]
            )
            more = f"; and {len(only) - 5} more" if len(only) > 5 else ""
            parts.append(Text(units.clean(f"only in {name}: {names}{more}")))
    return Group(*parts)


def headline(result: DiffResult) -> str:
    """How many rows are better, worse and unchanged, by metric."""
    lines = []
    for metric, better in result.run["metrics"].items():
        rows = [row for row in result.rows if row["metric"] == metric]
        counts = Counter(row["verdict"] for row in rows)
        shares = [row["relative"] for row in rows if row["relative"] is not None]
        mean = f", mean {signed(sum(shares) / len(shares))}" if shares else ""
        lines.append(
            f"{metric} ({better} is better): {counts['better']} better, {counts['worse']} worse, "
            f"{counts['unchanged']} unchanged{mean}"
        )
    return "\n".join(lines)


def signed(share: float | None) -> str:
    """A relative difference: ``+3.1 %``; ``from 0`` for None."""
    if share is None:
        return "from 0"
    return f"{'-' if share < 0 else '+'}{units.digits(abs(share) * 100)} %"


def _share(row: declared.Row) -> float:
    """The relative difference; infinite if A is 0."""
    return float("inf") if row["relative"] is None else row["relative"]


def values_of(row: Mapping[str, object], keys: Sequence[str]) -> list[str]:
    """The values of the keys in a row, as text."""
    return [units.keyed(name, row[name]) for name in keys]


def _table(run: DiffRun, rows: Sequence[declared.Row]) -> Table:
    several = len(run["metrics"]) > 1
    intervals = any(row["low"] is not None for row in rows)
    names = ["metric"] * several + ["a", "b", "relative"] + ["low"] * intervals + ["verdict"]
    heads = [*run["keys"], *declared.ROWS.heads(*names)]
    listed = []
    for row in rows:
        cells = values_of(row, run["keys"])
        cells += [row["metric"]] if several else []
        cells += [units.digits(row["a"], 6), units.digits(row["b"], 6), signed(row["relative"])]
        if intervals:
            interval = f"{signed(row['low'])} to {signed(row['high'])}"
            cells.append("-" if row["low"] is None else interval)
        listed.append([*cells, row["verdict"]])
    table = listing(f"A: {run['a']}, B: {run['b']}", heads, listed)
    for row, line in zip(rows, table.rows, strict=True):
        line.style = _STYLES.get(row["verdict"])
    return table
