"""Phases of a program: parts of its run with working sets of different size.

The run is cut into :data:`PARTS` equal parts. Successive parts belong to one phase while the
largest median of their working sets is less than :data:`FACTOR` times the smallest. A shift between
sets of equal size is not detected.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from nearfar import units
from nearfar.declared import info as declared

PARTS: Final = 32
FACTOR: Final = 2.0
#: Maximum number of phases to list; more are reported as constant change.
MOST: Final = 8


@dataclass(frozen=True)
class Phase:
    """A phase.

    Attributes:
        begin: where it begins, as a share of the run's records.
        end: where it ends.
        working_bytes: median of its working set.
        resident_bytes: largest resident set; None if the trace does not say when pages are freed.
    """

    begin: float
    end: float
    working_bytes: int
    resident_bytes: int | None


def phases(rows: Sequence[declared.WorkingSetRow]) -> list[Phase]:
    """The phases of a run, in order; a single one if its working set does not shift.

    Args:
        rows: ``working_set`` of :func:`nearfar.info.info`.
    """
    if not rows:
        return []
    count = min(PARTS, len(rows))
    edges = [round(len(rows) * part / count) for part in range(count + 1)]
    sizes = [statistics.median(row["bytes"] for row in rows[a:b]) for a, b in pairwise(edges)]
    borders, low, high = [0], sizes[0], sizes[0]
    for part, size in enumerate(sizes):
        if max(high, size) >= FACTOR * max(min(low, size), 1):
            borders.append(part)
            low = high = size
        low, high = min(low, size), max(high, size)
    total = rows[-1]["record"]
    result = []
    for begin, end in pairwise([*borders, count]):
        inside = rows[edges[begin] : edges[end]]
        resident = [row["resident_bytes"] for row in inside if row["resident_bytes"] is not None]
        result.append(
            Phase(
                rows[edges[begin] - 1]["record"] / total if begin else 0.0,
                inside[-1]["record"] / total,
                round(statistics.median(row["bytes"] for row in inside)),
                max(resident, default=None),
            )
        )
    return result


def sentence(result: Sequence[Phase]) -> str:
    """The phases in words; empty for a single one."""
    if len(result) < 2:
        return ""
    if len(result) > MOST:
        sizes = [phase.working_bytes for phase in result]
        low, high = units.size(min(sizes)), units.size(max(sizes))
        return f"the working set keeps changing, between {low} and {high}"
    named = [
        f"{units.size(phase.working_bytes)} until {units.percent(phase.end)}"
        for phase in result[:-1]
    ]
    return (
        f"the working set shifts: {', '.join(named)} of the run, then "
        f"{units.size(result[-1].working_bytes)}"
    )
