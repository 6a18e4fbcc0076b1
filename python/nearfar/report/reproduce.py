"""Published results and ours as text tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, cast

from rich.console import Group, JustifyMethod, OverflowMethod, RenderableType
from rich.text import Text

from nearfar import papers, units
from nearfar.declared import reproduce as declared
from nearfar.report.fitted import KEY, Table
from nearfar.reproduce import Claims, Reproduced, claims


def verdict(row: declared.Row) -> str:
    """The state of a row in a word: ``yes``, ``NO`` or ``input``."""
    if row["holds"] is None:
        return "input"
    return "yes" if row["holds"] else "NO"


#: States of a row in a chart, by its ``holds``.
STATES: Mapping[bool | None, str] = {False: "does not hold", True: "holds", None: "not judged"}

_STYLES = {"yes": "green", "NO": "bold red", "input": "dim"}


def summary(result: Reproduced) -> str:
    """How many rows hold, by paper, in one sentence."""
    rows = [row for row in result.rows if row["holds"] is not None]
    numbers = dict.fromkeys(row["paper"] for row in rows)
    parts = []
    for paper in numbers:
        own = [row for row in rows if row["paper"] == paper]
        parts.append(
            f"{sum(row['holds'] is True for row in own)} of {len(own)} of {papers.label(paper)}"
        )
    text = f"{sum(row['holds'] is True for row in rows)} of {len(rows)} rows hold"
    text += f": {', '.join(parts)}." if parts else "."
    inputs = sum(bool(row["input"]) for row in result.rows)
    return text + (f" Inputs, which do not count: {inputs}." if inputs else "")


class Captures(TypedDict):
    """How the reproduction of the paging studies was made."""

    captures: str
    view: str
    references_per_page: tuple[float, float]


def captures(run: Mapping[str, object]) -> str:
    """The captures behind the rows, in a sentence; empty if the study does not say."""
    if "references_per_page" not in run:
        return ""
    made = cast("Captures", run)
    low, high = made["references_per_page"]
    text = f"From {made['captures']}: {made['view']}, {low:g} to {high:g} for each page of 4 KiB."
    return text if low >= 50 else f"{text} These are so few that first touches decide."


def value(number: float | str | None) -> str:
    """A published or measured value, four digits of it."""
    if isinstance(number, str):
        return number
    if number is None:
        return "-"
    return f"{number:,.0f}" if abs(number) >= 10_000 else f"{number:.4g}"


def _claims(one: Claims) -> Text:
    """What a paper got right, what not, and why it matters today."""
    text = Text(f"{papers.label(one['paper'])}. ", style="bold")
    for word, says in (("Right", one["right"]), ("Not", one["wrong"])):
        if says:
            text.append(f"{word}: {'; '.join(says)}. ", style="not bold")
    return text.append(f"Today: {one['today']}", style="not bold")


def rows(result: Reproduced) -> RenderableType:
    """What each paper got right, the rows, then the sensitivity."""
    parts: list[RenderableType] = [_claims(one) for one in claims(result.rows)]
    parts.append(Text(summary(result), style="bold"))
    if text := captures(result.run):
        parts.append(Text(text))
    table = Table(collapse_padding=True)
    widths = {"paper": 14, "item": 62, "published": None, "ours": None, "unit": 34}
    for name, width in widths.items():
        justify: JustifyMethod = "right" if name == "ours" else "left"
        overflow: OverflowMethod = "ellipsis" if name == "ours" else "fold"
        table.add_column(
            declared.ROWS.head(name),
            max_width=width,
            justify=justify,
            overflow=overflow,
            importance=KEY if name in ("paper", "item", "ours") else 1,
        )
    for head in declared.ROWS.heads("tolerance", "holds"):
        table.add_column(head, importance=KEY if head == declared.ROWS.head("holds") else 1)
    for row in result.rows:
        table.add_row(
            Text(papers.label(row["paper"])),
            Text(units.clean(row["item"])),
            value(row["published"]),
            value(row["ours"]),
            Text(row["unit"]),
            str(row["tolerance"]),
            Text(verdict(row), style=_STYLES[verdict(row)]),
        )
    parts.append(table)
    missed = [row for row in result.rows if row["holds"] is False]
    if missed:
        parts.append(Text("Rows that do not hold:", style="bold"))
    parts += [
        Text(units.clean(f"{papers.label(row['paper'])}, {row['item']}. Ours: {_seen(row)}."))
        for row in missed
    ]
    if result.sensitivity:
        title = "Rows that hold with other choices where the papers leave a choice"
        other = Table(title, collapse_padding=True)
        for head in declared.SENSITIVITY_ROWS.heads("setting", "why"):
            other.add_column(head, overflow="fold", importance=KEY)
        for head in declared.SENSITIVITY_ROWS.heads("holds", "more", "fewer"):
            other.add_column(head, justify="right")
        for case in result.sensitivity:
            hold = f"{case['holds']} of {case['rows']}"
            more, fewer = f"+{len(case['more'])}", f"-{len(case['fewer'])}"
            other.add_row(case["setting"], case["why"], hold, more, fewer)
        parts += [Text(""), other]
    return Group(*parts)


def _seen(row: declared.Row) -> str:
    """The note of a row, or its numbers."""
    return str(row["note"] or f"{value(row['ours'])} {row['unit']}, not {value(row['published'])}")
