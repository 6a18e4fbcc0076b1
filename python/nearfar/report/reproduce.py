"""Published results and ours as text tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import papers, units
from nearfar.declared import reproduce as declared
from nearfar.report.fitted import KEY, Table
from nearfar.reproduce import Claims, Reproduced, claims


def verdict(row: declared.Row) -> str:
    """``yes`` if a row holds (is within tolerance), ``NO`` if not; ``input`` if not judged."""
    if row["holds"] is None:
        return "input"
    return "yes" if row["holds"] else "NO"


#: States of a row in a chart, by its ``holds``.
STATES: Mapping[bool | None, str] = {False: "does not hold", True: "holds", None: "not judged"}

_STYLES = {"yes": "green", "NO": "bold red", "input": "dim"}


def summary(result: Reproduced) -> str:
    """How many rows hold, by paper, in one sentence."""
    judged = Counter(row["paper"] for row in result.rows if row["holds"] is not None)
    hold = Counter(row["paper"] for row in result.rows if row["holds"])
    parts = [f"{hold[paper]} of {n} of {papers.label(paper)}" for paper, n in judged.items()]
    text = f"{hold.total()} of {judged.total()} rows hold"
    text += f": {', '.join(parts)}." if parts else "."
    inputs = sum(bool(row["input"]) for row in result.rows)
    return text + (f" Inputs, which do not count: {inputs}." if inputs else "")


def captures(run: Mapping[str, Any]) -> str:
    """The captures from which the rows come; empty if the study records none."""
    if "references_per_page" not in run:
        return ""
    low, high = run["references_per_page"]
    text = f"From {run['captures']}: {run['view']}, {low:g} to {high:g} for each page of 4 KiB."
    return text if low >= 50 else f"{text} With so few references per page, first touches dominate."


def value(number: float | str | None) -> str:
    """A published or measured value, to four digits."""
    if isinstance(number, str):
        return number
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"


def _claims(of_paper: Claims) -> Text:
    text = Text(f"{papers.label(of_paper['paper'])}. ", style="bold")
    for word, statements in (("Right", of_paper["right"]), ("Wrong", of_paper["wrong"])):
        if statements:
            text.append(f"{word}: {'; '.join(statements)}. ", style="not bold")
    return text.append(f"Today: {of_paper['today']}", style="not bold")


def rows(result: Reproduced) -> RenderableType:
    """What each paper got right, the rows, then the sensitivity."""
    parts: list[RenderableType] = list(map(_claims, claims(result.rows)))
    parts.append(Text(summary(result), style="bold"))
    if text := captures(result.run):
        parts.append(Text(text))
    table, head = Table(collapse_padding=True), declared.ROWS.head
    table.add_column(head("paper"), max_width=14, overflow="fold", importance=KEY)
    table.add_column(head("item"), max_width=62, overflow="fold", importance=KEY)
    table.add_column(head("published"), overflow="fold")
    table.add_column(head("ours"), justify="right", importance=KEY)
    table.add_column(head("unit"), max_width=34, overflow="fold")
    table.add_column(head("tolerance"))
    table.add_column(head("holds"), importance=KEY)
    for row in result.rows:
        table.add_row(
            papers.label(row["paper"]),
            units.clean(row["item"]),
            value(row["published"]),
            value(row["ours"]),
            row["unit"],
            str(row["tolerance"]),
            Text(verdict(row), style=_STYLES[verdict(row)]),
        )
    parts.append(table)
    missed = [row for row in result.rows if row["holds"] is False]
    if missed:
        parts.append(Text("Rows that do not hold:", style="bold"))
    parts += [
        Text(units.clean(f"{papers.label(row['paper'])}, {row['item']}. Ours: {_measured(row)}."))
        for row in missed
    ]
    if result.sensitivity:
        title = "Rows that hold with other readings of what the papers leave open"
        other = Table(title, collapse_padding=True)
        heads = declared.SENSITIVITY_ROWS.heads
        other.add_columns(heads("setting", "why"), overflow="fold", importance=KEY)
        other.add_columns(heads("holds", "more", "fewer"), justify="right")
        for case in result.sensitivity:
            hold = f"{case['holds']} of {case['rows']}"
            more, fewer = f"+{len(case['more'])}", f"-{len(case['fewer'])}"
            other.add_row(case["setting"], case["why"], hold, more, fewer)
        parts += [Text(""), other]
    return Group(*parts)


def _measured(row: declared.Row) -> str:
    """The note of a row, or its numbers."""
    return str(row["note"] or f"{value(row['ours'])} {row['unit']}, not {value(row['published'])}")
