"""Tables of docs/validation.md from the record of the bench case `kernel-faults`.

In polled runs (SECOND) the kernel's statistics are read all the time, which updates them; in other
runs (MAIN) they are not read.
"""

from __future__ import annotations

import statistics
from typing import Any

from cases.kernel_faults import (
    AROUND,
    FEWEST,
    MAIN,
    NAME,
    NEAR,
    SECOND,
    errors,
    pairs,
    signed_error,
    spare,
)
from table import recorded, summary

Cells = list[dict[str, Any]]

#: The prediction shown for cells whose runs were all killed. Whether the kernel updated its memory
#: statistics in them is not known; `old` assumes that it did not, `exact` that it always did.
PREDICTED_KILLED = "old"


def figures() -> str:
    """The rows over all cells, without those of single programs."""
    of_program = "signed error"
    return summary(
        one
        for one in recorded(NAME)["rows"]
        if not one["name"].startswith(of_program) or ", all, " in one["name"]
    )


def programs() -> str:
    """A row for each program, and one for all cells."""
    cells: Cells = recorded(NAME)["cells"]
    lines = [
        "| program | what it is | pages | not polled: median error | worst | killed runs | polled: "
        "median error | worst |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(cell["program"] for cell in cells):
        own = [cell for cell in cells if cell["program"] == name]
        about = f"{own[0]['kind']} | {own[0]['anonymous_pages']:,}"
        lines.append(f"| `{name}` | {about} | {_summed(own)} |")
    lines.append(f"| all | {len(cells)} cells | | {_summed(cells)} |")
    return "\n".join(lines) + "\n"


def _summed(cells: Cells) -> str:
    killed = sum(cell["kernel_killed"] for cell in cells)
    runs = killed + sum(len(cell["kernel"]) for cell in cells)
    main, second = errors(cells, *MAIN), errors(cells, *SECOND)
    words = [_middle(main), _worst(main), f"{killed} of {runs}", _middle(second), _worst(second)]
    return " | ".join(words)


def _middle(found: list[float]) -> str:
    return f"{statistics.median(found):+.1f} %" if found else "none"


def _worst(found: list[float]) -> str:
    return f"{max(found, key=abs):+.1f} %" if found else ""


def every_cell() -> str:
    """A table for each program."""
    cells: Cells = recorded(NAME)["cells"]
    parts = []
    for name in dict.fromkeys(cell["program"] for cell in cells):
        lines = [
            f"`{name}`",
            "",
            "| memory | frames | counted | killed | predicted | error | counted, polled "
            "| predicted | error |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        lines += [_cell(cell) for cell in cells if cell["program"] == name]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _cell(cell: dict[str, Any]) -> str:
    words = [f"{cell['part']:.0%}", f"{cell['frames']:,}"]
    for counts, predicted in (MAIN, SECOND):
        error = signed_error(cell, counts, predicted)
        words.append(_counted(cell, counts))
        if counts == MAIN[0]:
            words.append(f"{cell['kernel_killed'] or ''}")
        names = sorted({name for _, name in pairs(cell, counts, predicted)}) or [PREDICTED_KILLED]
        words.append(" or ".join(f"{cell['predicted'][name]:,}" for name in names))
        words.append("" if error is None else f"{error:+.1f} %")
    return f"| {' | '.join(words)} |"


def _counted(cell: dict[str, Any], counts: str) -> str:
    """The count of the runs, or their range; a star if statistics were updated in some run."""
    found = sorted(cell[counts])
    if not found:
        return "all killed"
    text = f"{found[0]:,}" if found[0] == found[-1] else f"{found[0]:,} to {found[-1]:,}"
    few = " (few)" if statistics.median(found) < FEWEST else ""
    return text + ("*" if counts == MAIN[0] and len(cell["steady"]) < len(found) else "") + few


def worse() -> str:
    """The cells with an error above 25 %, and the cause that the record shows."""
    lines = ["| program | memory | | error | why |", "|---|---|---|---|---|"]
    for cell in recorded(NAME)["cells"]:
        for (counts, predicted), how in ((MAIN, "not polled"), (SECOND, "polled")):
            error = signed_error(cell, counts, predicted)
            if error is not None and abs(error) > NEAR[-1]:
                why = _cause(cell, counts, predicted)
                part = f"{cell['part']:.0%}"
                lines.append(f"| `{cell['program']}` | {part} | {how} | {error:+.1f} % | {why} |")
    return "\n".join(lines) + "\n"


def _cause(cell: dict[str, Any], counts: str, predicted: str) -> str:
    """The cause of a cell's error as far as the record shows it, else "open"."""
    held, traced = cell["anonymous_pages"], cell["trace_pages"]
    if traced > held * 1.05:
        return f"the captured run held more at once: {traced:,} pages, not {held:,}"
    found = pairs(cell, counts, predicted)
    names = {name for _, name in found}
    middle = statistics.median(count for count, _ in found)
    around = [count for name in names for count in cell["around"][name]]
    # The largest surplus of frames for which a prediction was made.
    more = max(spare(cell), default=AROUND[-1])
    between = (
        f"from {-AROUND[0]} frames less to {more} more, {min(around):,} to {max(around):,} faults "
        "are predicted"
    )
    if min(around) <= middle <= max(around):
        return f"sensitive to a few frames: {between}"
    never, always = (cell["predicted"][name] for name in ("old", "exact"))
    if counts == MAIN[0] and "exact" in names and min(never, always) < middle < max(never, always):
        return (
            f"statistics were updated in some runs: {never:,} are predicted for never, "
            f"{always:,} for always"
        )
    return f"open; {between}"


#: Tables of docs/validation.md, by name.
TABLES = {"figures": figures, "programs": programs, "worse": worse, "cells": every_cell}
