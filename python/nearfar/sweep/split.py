"""Splitting a cell into parts for several workers, and joining them.

A study that splits (:class:`nearfar.studies.Study`) lists its pieces; a part is a run of adjacent
pieces. Each part decodes the trace once, so there are no more parts than workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nearfar import studies
from nearfar.errors import NearfarError
from nearfar.sweep import cell
from nearfar.sweep.cell import Job, Outcome, parameters_of, parts_of


def jobs_of(job: Job, count: int) -> list[Job]:
    """Up to ``count`` jobs for the unfinished parts of a cell; the job itself if it is not split.

    Empty if all parts are finished and only the join is missing.
    """
    study = studies.find(job["study"])
    finished = parts_of(job["key"], Path(job["folder"]))
    if job["error"] is not None or not study.splits or (count == 1 and not finished):
        return [job]
    try:
        pieces: dict[int, float] = study.module.pieces(**parameters_of(study, job))
    except NearfarError:
        return [job]  # which fails with the same error
    done = {piece for part in finished for piece in part["only"]}
    left = {piece: work for piece, work in pieces.items() if piece not in done}
    parts = in_rows(left, count)
    return [job] if len(parts) + len(finished) < 2 else [{**job, "only": part} for part in parts]


class Joiner:
    """Joins cells when their last part is finished.

    Args:
        cells: the job of each whole cell.
        jobs: by key, what :func:`jobs_of` made of it.
    """

    def __init__(self, cells: Sequence[Job], jobs: Mapping[str, Sequence[Job]]) -> None:
        """Nothing is joined yet."""
        self._cells = {job["key"]: job for job in cells}
        #: Unfinished parts by cell; a cell that failed is gone.
        self._left = {key: len(parts) for key, parts in jobs.items()}

    def cells(self, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        """Outcomes of cells, from outcomes of jobs."""
        for key in [key for key, parts in self._left.items() if parts == 0]:
            yield self._join(key)
        for outcome in outcomes:
            key = outcome["key"]
            if key not in self._left:
                continue
            self._left[key] -= 1
            if outcome["status"] != "part":
                del self._left[key]
                yield outcome
            elif not self._left[key]:
                yield self._join(key)

    def _join(self, key: str) -> Outcome:
        del self._left[key]
        return cell.join(self._cells[key])


def in_rows(pieces: Mapping[int, float], count: int) -> list[list[int]]:
    """At most ``count`` runs of adjacent pieces, such that the largest work of a run is minimal."""

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
    # Bisect until no sum of a row is between.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if len(within(middle)) <= count else (middle, high)
    return within(high)
