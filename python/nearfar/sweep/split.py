"""A cell in parts, which workers run apart: how many, and which pieces each has.

A study that can be split says what its pieces are (:meth:`nearfar.studies.Study.pieces`). A part
is some of them in a row. Each part decodes the trace by itself, once for all its pieces: so there
are no more parts than there are workers to run them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nearfar import studies
from nearfar.errors import NearfarError
from nearfar.sweep.cell import Job, parameters_of, parts_of


def jobs_of(job: Job, count: int) -> list[Job]:
    """The job as up to ``count`` parts: those that are not there yet; itself if it stays whole.

    None are left where a sweep ended between the last part and the cell.
    """
    study = studies.find(job["study"])
    kept = parts_of(job["key"], Path(job["folder"]))
    if job["error"] is not None or not study.splits or (count == 1 and not kept):
        return [job]
    try:
        pieces = study.pieces(parameters_of(study, job))
    except NearfarError:
        # It says so when it runs.
        return [job]
    done = {piece for part in kept for piece in part["only"]}
    left = {piece: work for piece, work in pieces.items() if piece not in done}
    parts = in_rows(left, count)
    return [job] if len(parts) + len(kept) < 2 else [{**job, "only": part} for part in parts]


def in_rows(pieces: Mapping[int, float], count: int) -> list[list[int]]:
    """At most ``count`` rows of pieces, the one with most work having as little as can be."""

    def within(limit: float) -> list[list[int]]:
        rows: list[list[int]] = []
        sum_of = limit
        for piece, work in pieces.items():
            if not rows or sum_of + work > limit:
                rows.append([])
                sum_of = 0.0
            rows[-1].append(piece)
            sum_of += work
        return rows

    if not pieces:
        return []
    low, high = max(pieces.values()), sum(pieces.values()) + 1.0
    # Halved until no sum of a row lies between.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if len(within(middle)) <= count else (middle, high)
    return within(high)
