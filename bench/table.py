"""Formats rows of the bench as Markdown tables, for terminals and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"

HEAD = ["case", "what", "median", "least", "most", "unit", "goal", "", "cores"]


def number(value: float) -> str:
    """A number with three significant digits; whole numbers, and from 1000 on, without fraction."""
    if value == int(value) or abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def recorded(case: str) -> dict[str, Any]:
    """The record ``results/CASE.json`` of a case."""
    found: dict[str, Any] = json.loads((RESULTS / f"{case}.json").read_text(encoding="utf-8"))
    return found


def summary(rows: Iterable[dict[str, Any]]) -> str:
    """Rows of a record as a table of the documentation."""
    lines = ["| | | goal | |", "|---|---|---|---|"]
    for one in rows:
        median, least, most = (number(one[key]) for key in ("value", "low", "high"))
        text = median if one["rounds"] == 1 else f"{median}, from {least} to {most}"
        met = {True: "met", False: "**missed**", None: ""}[one["holds"]]
        lines.append(f"| {one['name']} | {text} {one['unit']} | {one['goal']} | {met} |")
    return "\n".join(lines) + "\n"


def figures(case: str) -> Callable[[], str]:
    """The function that makes the table of all rows of a case's record."""
    return lambda: summary(recorded(case)["rows"])


def cells(row: dict[str, Any]) -> list[str]:
    """The cells of a row, in the order of :data:`HEAD`."""
    single = row["rounds"] == 1
    return [
        row["case"],
        row["name"],
        number(row["value"]),
        "" if single else number(row["low"]),
        "" if single else number(row["high"]),
        row["unit"],
        row["goal"],
        {True: "met", False: "MISSED", None: ""}[row["holds"]],
        str(row["cores"] or ""),
    ]


def render(result: dict[str, Any]) -> str:
    """The result of a run: machine, table, remarks and notes."""
    lines = [HEAD, *(cells(row) for row in result["rows"])]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    table = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    table.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    notes: dict[str, None] = {}
    for row in result["rows"]:
        if row["note"]:
            notes[f"* {row['case']}, {row['name']}: {row['note']}."] = None
    found = result["machine"]
    before, after = (result["load_average"][when][0] for when in ("before", "after"))
    about = (
        f"{found['cpu']} (family {found['family']}), {found['cpus']} CPUs, "
        f"{found['memory_gib']} GiB; load average "
        f"{before:.1f} before, {after:.1f} after; median of {result['options']['rounds']} rounds"
    )
    if result["options"]["quick"]:
        about += "; quick: inputs too small to judge goals by"
    remarks = [f"* {remark}." for remark in result["remarks"]]
    return "\n".join([about, "", *table, "", *remarks, *notes]) + "\n"
