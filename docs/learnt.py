"""What was learnt of the five papers: their rows, recorded, and what the page says of them.

``docs/found.json`` holds the rows of whole runs, by study; ``docs/reproduce.md`` begins with what
is made of them here (``make declared``). To record a study again::

    .venv/bin/python docs/learnt.py numa paging ssd tiering

They are those of ``nearfar reproduce --all``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FOUND: Final = Path(__file__).with_name("found.json")
#: What of a row is recorded.
KEYS: Final = ("paper", "item", "published", "ours", "unit", "tolerance", "holds", "input")

Row = dict[str, Any]


def recorded() -> dict[str, list[Row]]:
    """The rows of each study."""
    found: dict[str, list[Row]] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


def kept(rows: Sequence[Any]) -> list[Row]:
    """The rows as they are recorded."""
    return [{key: row[key] for key in KEYS} for row in rows]


def summary() -> str:
    """A table of counts, then the statements of each paper that stand, that do not, that cannot
    be judged."""
    from nearfar.papers import SYSTEMS, label
    from nearfar.report.reproduce import value, verdict

    rows = [row for study in recorded().values() for row in study]
    lines = ["| paper | stand | do not | cannot be judged |", "|---|---|---|---|"]
    parts = []
    for paper in sorted(SYSTEMS):
        by: dict[str, list[Row]] = {"yes": [], "NO": [], "input": []}
        for row in rows:
            if row["paper"] == paper:
                by[verdict(row)].append(row)
        counts = " | ".join(str(len(by[word])) for word in by)
        lines.append(f"| {label(paper)} | {counts} |")
        said = [f"**{label(paper)}**\n"]
        if by["yes"]:
            said.append(f"* Stand: {'; '.join(_item(row) for row in by['yes'])}.")
        if by["NO"]:
            wrong = (f"{_item(row)} (ours {value(row['ours'])} {row['unit']})" for row in by["NO"])
            said.append(f"* Do not: {'; '.join(wrong)}.")
        if by["input"]:
            inputs = (f"{_item(row)} (`{row['input']}`)" for row in by["input"])
            said.append(f"* Put in, so not judged: {'; '.join(inputs)}.")
        parts.append("\n".join(said))
    return "\n\n".join(["\n".join(lines), *parts]) + "\n"


def table(what: str) -> str:
    """The rows of a study, or of one paper in it: ``tiering 003``."""
    from nearfar.papers import label
    from nearfar.report.reproduce import value, verdict

    lines = [
        "| paper | statement | published | ours | unit | tolerance | holds |",
        "|---" * 7 + "|",
    ]
    study, _, paper = what.partition(" ")
    for row in recorded()[study]:
        if paper not in ("", row["paper"]):
            continue
        cells = [label(row["paper"]), row["item"], value(row["published"]), value(row["ours"])]
        cells += [row["unit"], row["tolerance"], verdict(row).replace("NO", "**no**")]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _item(row: Row) -> str:
    """What is stated, and where; with the number, where there is one."""
    from nearfar.report.reproduce import value

    place, _, says = row["item"].partition(": ")
    number = "" if isinstance(row["published"], str) else f", {value(row['published'])}"
    return f"{says}{number} [{place}]".replace("|", "/")


def main(words: Sequence[str]) -> None:
    """Record the studies that are named."""
    from nearfar.reproduce import rows

    found = recorded() if FOUND.exists() else {}
    for study in words:
        found[study] = kept(rows(study))
    FOUND.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
