"""Which memory DAMON saw accessed, by time and by address, with bounds (``docs/info.md``)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from nearfar import damo
from nearfar.result import Result
from nearfar.schema import Column, Rows

if TYPE_CHECKING:
    import pyarrow

#: DAMON's own sampling interval (``include/linux/damon.h``, ``DamonIntervals`` of damo).
_SAMPLE_NS: Final = 5_000_000
#: Intervals of time and pieces of the address space that are shown.
_TIMES: Final = 20
_PIECES: Final = 32
_PAGE: Final = 4096
#: Areas closer than this are shown as one: DAMON itself splits a process at its largest gaps.
_GAP: Final = 64 << 20
#: Quantile of the normal distribution for bounds of 95 %.
_Z: Final = 1.96

_BOUNDS: Final = (
    Column("low_bytes", "int64", False, "bytes", "Accessed at a time, at least (95 %)."),
    Column("likely_bytes", "int64", False, "bytes", "Accessed at a time: share of samples, size."),
    Column("high_bytes", "int64", False, "bytes", "Accessed at a time, at most (95 %)."),
)
ROWS: Final = Rows(
    columns=(
        Column("start_ns", "int64", False, "ns", "Begin, since the record began."),
        Column("end_ns", "int64", False, "ns", "End."),
        *_BOUNDS,
        Column("seen_bytes", "int64", False, "bytes", "Regions with an access: damo's `wss`."),
    ),
    keys=("start_ns",),
    metrics={},
)
PIECES: Final = Rows(
    columns=(
        Column("addr", "uint64", False, "", "First address."),
        Column("bytes", "int64", False, "bytes", "Size."),
        Column("share", "double", False, "", "Samples that found a page of it accessed."),
        Column("last_ns", "int64", True, "ns", "Last time of an access; null if there was none."),
    ),
    keys=("addr",),
    metrics={},
)


@dataclass(frozen=True, repr=False)
class HeatResult(Result):
    """What DAMON saw of a program.

    Attributes:
        heat: the file.
        targets: processes, or address spaces.
        snapshots: aggregation intervals.
        sample_ns: sampling interval.
        sample_assumed: whether that is DAMON's default, as the record does not say.
        samples: samples in a snapshot, at most.
        monitored_bytes: memory that DAMON looked at, on average.
        working_set: bytes of the regions with an access, by statistic, as damo's ``wss``.
        rows: heat by time.
        pieces: heat by address.
    """

    heat: str
    targets: int
    snapshots: int
    sample_ns: int
    sample_assumed: bool
    samples: int
    monitored_bytes: int
    working_set: dict[str, int]
    rows: list[dict[str, int]]
    pieces: list[dict[str, float | None]]

    shown = "nearfar.report.heat:heat"
    plain: ClassVar = (
        "heat", "targets", "snapshots", "sample_ns", "sample_assumed", "samples",
        "monitored_bytes", "working_set", "rows", "pieces",
    )  # fmt: skip

    @property
    def table(self) -> pyarrow.Table:
        """Heat by time."""
        return ROWS.table(self.rows)


def bounds(hits: int, samples: int) -> tuple[float, float]:
    """The share of a region's pages that is accessed at a time, with 95 % (Wilson's interval).

    Each sample looks at one page, at random, so ``hits`` of ``samples`` is binomial.
    """
    share, more = hits / samples, _Z * _Z / samples
    middle = share + more / 2
    spread = math.sqrt(share * (1 - share) * more + more * more / 4)
    return max(0.0, (middle - spread) / (1 + more)), min(1.0, (middle + spread) / (1 + more))


def heat(path: str | PathLike[str]) -> HeatResult:
    """Summarize a ``.heat`` file, which ``nearfar import --format damo`` writes.

    Raises:
        NearfarError: it is damaged, or none.
    """
    found = damo.load(Path(path))
    sample = found.sample_ns or _SAMPLE_NS
    begin = min(one.start for one in found.snapshots)
    end = max(one.end for one in found.snapshots)
    pieces = _split(found.snapshots)
    starts = [low for low, _ in pieces]
    hot, cover, last = ([0.0] * len(pieces), [0.0] * len(pieces), [-1] * len(pieces))
    slots = min(_TIMES, len({one.start for one in found.snapshots}))
    sums = [[0.0] * 4 for _ in range(slots)]
    seen: dict[int, list[int]] = {}
    most, monitored = 1, 0.0
    targets = len({one.target for one in found.snapshots})
    for one in found.snapshots:
        time = one.end - one.start
        hits = max((region[2] for region in one.regions), default=0)
        samples = max(1, round(time / sample), hits)
        most = max(most, samples)
        values = [0.0] * 4
        for low, high, count in one.regions:
            size = high - low
            least, greatest = bounds(count, samples)
            share = count / samples
            parts = (least * size, share * size, greatest * size, size if count else 0)
            values = [value + part for value, part in zip(values, parts, strict=True)]
            monitored += size * time
            place = max(0, bisect_right(starts, low) - 1)
            while place < len(pieces) and pieces[place][0] < high:
                overlap = (min(high, pieces[place][1]) - max(low, pieces[place][0])) * time
                hot[place] += share * overlap
                cover[place] += overlap
                if count:
                    last[place] = max(last[place], one.end - begin)
                place += 1
        seen.setdefault(one.target, []).append(round(values[3]))
        slot = min(slots - 1, (one.start + time // 2 - begin) * slots // (end - begin))
        sums[slot] = [sum_ + value * time for sum_, value in zip(sums[slot], values, strict=True)]
    edges = [(end - begin) * slot // slots for slot in range(slots + 1)]
    return HeatResult(
        heat=str(path),
        targets=targets,
        snapshots=len(found.snapshots),
        sample_ns=sample,
        sample_assumed=found.sample_ns is None,
        samples=most,
        monitored_bytes=round(monitored / (end - begin)),
        working_set=_statistics(seen),
        rows=_rows(edges, sums),
        pieces=[
            {"addr": low, "bytes": high - low, "share": hot[place] / cover[place],
             "last_ns": None if last[place] < 0 else last[place]}
            for place, (low, high) in enumerate(pieces) if cover[place]
        ],
    )  # fmt: skip


def _rows(edges: Sequence[int], sums: Sequence[Sequence[float]]) -> list[dict[str, int]]:
    """Averages over each interval between two of ``edges``."""
    names = ("low_bytes", "likely_bytes", "high_bytes", "seen_bytes")
    return [
        {"start_ns": start, "end_ns": end,
         **{name: round(value / (end - start)) for name, value in zip(names, of, strict=True)}}
        for start, end, of in zip(edges, edges[1:], sums, strict=False)
    ]  # fmt: skip


def _statistics(seen: dict[int, list[int]]) -> dict[str, int]:
    """Mean and percentiles of the working set, as damo's ``wss`` counts: targets in parallel."""
    longest = max(map(len, seen.values()))
    sizes = sorted(
        sum(of[place] for of in seen.values() if place < len(of)) for place in range(longest)
    )
    at = {"p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
    found = {name: sizes[int(part * len(sizes))] for name, part in at.items()}
    return {"mean": round(sum(sizes) / len(sizes)), **found, "most": sizes[-1]}


def _split(snapshots: Sequence[damo.Snapshot]) -> list[tuple[int, int]]:
    """Pieces of about equal size of all memory that DAMON looked at."""
    areas: list[list[int]] = []
    for low, high in sorted({region[:2] for one in snapshots for region in one.regions}):
        if areas and low <= areas[-1][1] + _GAP:
            areas[-1][1] = max(areas[-1][1], high)
        else:
            areas.append([low, high])
    total = sum(high - low for low, high in areas)
    step = -(-total // (_PIECES * _PAGE)) * _PAGE
    return [
        (start, min(start + step, high))
        for low, high in areas
        for start in range(low, high, step)
    ]  # fmt: skip
