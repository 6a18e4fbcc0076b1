"""Results for the five papers: records the rows, and makes tables of them for the site.

``docs/found.json`` has the rows of whole runs, by study, as ``nearfar reproduce --all`` gives them.
To record a study again::

    .venv/bin/python docs/learnt.py numa paging ssd tiering

``docs/found-vm.json`` has the rows for captures of whole virtual machines, by study. To record
them from the captures in a folder::

    .venv/bin/python docs/learnt.py --vm FOLDER paging ssd
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

FOUND: Final = Path(__file__).with_name("found.json")
IN_VMS: Final = FOUND.with_name("found-vm.json")
#: The recorded keys of a row.
KEYS: Final = ("paper", "item", "published", "ours", "unit", "tolerance", "holds", "input")

Row = dict[str, Any]


def recorded(file: Path = FOUND) -> dict[str, list[Row]]:
    """The recorded rows of each study."""
    found: dict[str, list[Row]] = json.loads(file.read_text(encoding="utf-8"))
    return found


def kept(rows: Sequence[Any]) -> list[Row]:
    """The rows, reduced to the recorded keys."""
    return [{key: row[key] for key in KEYS} for row in rows]


def summary() -> str:
    """A table of counts; then the statements of each paper by verdict."""
    from nearfar.papers import SYSTEMS, label
    from nearfar.report.reproduce import value, verdict

    rows = [row for study in recorded().values() for row in study]
    lines = ["| paper | stand | do not | cannot be judged |", "|---|---|---|---|"]
    parts = []
    for paper in sorted(SYSTEMS):
        by_verdict: dict[str, list[Row]] = {"yes": [], "NO": [], "input": []}
        for row in rows:
            if row["paper"] == paper:
                by_verdict[verdict(row)].append(row)
        counts = " | ".join(str(len(rows_of)) for rows_of in by_verdict.values())
        lines.append(f"| {label(paper)} | {counts} |")
        part = [f"**{label(paper)}**\n"]
        if held := by_verdict["yes"]:
            part.append(f"* Hold: {'; '.join(map(_item, held))}.")
        if failed := by_verdict["NO"]:
            wrong = (f"{_item(row)} (ours {value(row['ours'])} {row['unit']})" for row in failed)
            part.append(f"* Do not hold: {'; '.join(wrong)}.")
        if unjudged := by_verdict["input"]:
            inputs = (f"{_item(row)} (`{row['input']}`)" for row in unjudged)
            part.append(f"* Repeats an input, so not judged: {'; '.join(inputs)}.")
        parts.append("\n".join(part))
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


def in_vms(study: str) -> str:
    """The rows whose verdict, or number if without a verdict, differs in captures of whole virtual
    machines."""
    from nearfar.papers import label
    from nearfar.report.reproduce import value, verdict

    lines = ["| paper | statement | unit | program | virtual machine | holds |", "|---" * 6 + "|"]
    for row, vm in zip(recorded()[study], recorded(IN_VMS)[study], strict=True):
        if row["holds"] != vm["holds"] or row["holds"] is None and row["ours"] != vm["ours"]:
            holds = f"{verdict(row)}, {verdict(vm)}".replace("NO", "**no**")
            cells = [label(row["paper"]), row["item"], row["unit"], value(row["ours"])]
            cells += [value(vm["ours"]), holds]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _item(row: Row) -> str:
    """A row's statement, its number if it has one, and its place in the paper."""
    from nearfar.report.reproduce import value

    place, _, says = row["item"].partition(": ")
    number = "" if isinstance(row["published"], str) else f", {value(row['published'])}"
    return f"{says}{number} [{place}]".replace("|", "/")


def main(words: Sequence[str]) -> None:
    """Record the named studies."""
    from nearfar.declared import reproduce as declared
    from nearfar.reproduce import rows

    file, studies, options = FOUND, words, declared.Options()
    if words[:1] == ["--vm"]:
        file, studies, options = IN_VMS, words[2:], declared.Options(vm=True, traces=words[1])
    found = recorded(file) if file.exists() else {}
    for study in studies:
        found[study] = kept(rows(study, **options))
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
