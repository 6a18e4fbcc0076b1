"""Tables of docs/validation.md from the record of the bench case `page-gain`."""

from __future__ import annotations

import statistics
from typing import Any

from cases.page_gain import (
    NAME,
    apart,
    gains,
    inside,
    near,
    predicted_gain,
    right_sign,
    shown,
)
from measure import percent
from table import recorded, summary

from nearfar.apply.setting import short

Cells = list[dict[str, Any]]


def figures() -> str:
    """The rows over all cells, without those of single cells."""
    made = recorded(NAME)["rows"]
    return summary(one for one in made if not one["name"].startswith("signed gain, "))


def _by_program() -> dict[str, Cells]:
    found: dict[str, Cells] = {}
    for cell in recorded(NAME)["cells"]:
        found.setdefault(cell["program"], []).append(cell)
    return found


def _head(first: str, rule: str) -> list[str]:
    """The two lines that begin a table with a column for each page size."""
    sizes = list(dict.fromkeys(cell["page_bytes"] for cell in recorded(NAME)["cells"]))
    named = " | ".join(short(size) for size in sizes)
    return [f"{first} {named} |", rule + "---:|" * len(sizes)]


def _right(cell: dict[str, Any]) -> bool:
    """Whether a predicted gain is near the measured one, and has its sign if it is significant."""
    return near(cell) and (right_sign(cell) or not shown(cell))


def programs() -> str:
    """A line for each program, a column for each page size: measured, then predicted."""
    lines = _head("| program | 4 KiB | |", "|---|---:|---|")
    for name, own in _by_program().items():
        base = statistics.median(sum(spent) for cell in own for spent in cell["base"])
        predicted_base = sum(own[0]["predicted_base"].values())
        measured = " | ".join(percent(gains(cell)) for cell in own)
        predicted = " | ".join(_predicted(cell) for cell in own)
        lines.append(f"| `{name}` | {base:.2f} s | measured | {measured} |")
        lines.append(f"| | {predicted_base:.2f} s | predicted | {predicted} |")
    return "\n".join(lines) + "\n"


def _predicted(cell: dict[str, Any]) -> str:
    text = f"{100 * predicted_gain(cell):+.1f}"
    return text if _right(cell) else f"**{text}**"


def obtained() -> str:
    """Large pages that a run obtained, and the resident memory that they are predicted to add."""
    lines = _head("| program |", "|---|")
    for name, own in _by_program().items():
        words = [
            f"{statistics.median(cell['obtained']):,.0f}; {cell['bloat_bytes'] / 2**20:,.1f} MiB"
            for cell in own
        ]
        lines.append(f"| `{name}` | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def misses() -> str:
    """The cells for which :func:`_right` does not hold, with the errors of user and kernel time."""
    lines = [
        "| program | page | measured | predicted | in the interval | the program's own time | "
        "the kernel's |",
        "|---|---|---:|---:|---|---:|---:|",
    ]
    for cell in recorded(NAME)["cells"]:
        if _right(cell):
            continue
        parts = apart(cell)
        gain = 100 * statistics.median(gains(cell))
        words = [f"{gain:+.1f} %", f"{100 * predicted_gain(cell):+.1f} %"]
        words.append("yes" if inside(cell) else "**no**")
        words += [f"{100 * parts[name]:+.1f} points" for name in ("program", "kernel")]
        page = short(cell["page_bytes"])
        lines.append(f"| `{cell['program']}` | {page} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


#: Tables of docs/validation.md, by name.
TABLES = {"figures": figures, "programs": programs, "obtained": obtained, "misses": misses}
