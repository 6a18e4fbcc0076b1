"""Which memory DAMON saw accessed, by time and by address, with bounds (``docs/info.md``)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from nearfar import damo
from nearfar.columns import byte_size, integer
from nearfar.result import Result
from nearfar.schema import Rows

if TYPE_CHECKING:
    import pyarrow

#: DAMON's default sampling interval (``include/linux/damon.h``, ``DamonIntervals`` of damo).
_SAMPLE_NS: Final = 5_000_000
#: Maximum number of time intervals, and of address pieces, in a result.
_TIMES: Final = 20
_PIECES: Final = 32
_PAGE: Final = 4096
#: Areas closer than this, bytes, are shown as one.
_GAP: Final = 64 << 20
#: Quantile of the normal distribution for bounds of 95 %.
_Z: Final = 1.96

#: The memory accessed: its bounds.
_BOUNDS: Final = (
    byte_size("low_bytes", "Lower bound (95 %) of the memory accessed in a sampling interval."),
    byte_size(
        "likely_bytes",
        "Memory accessed in a sampling interval, estimate: share of samples with an access x "
        "region size.",
    ),
    byte_size("high_bytes", "Upper bound (95 %) of the memory accessed in a sampling interval."),
)
ROWS: Final = Rows(
    columns=(
        integer("start_ns", "Start of the interval, since the record began.", "ns"),
        integer("end_ns", "End of the interval, since the record began.", "ns"),
        *_BOUNDS,
        byte_size("seen_bytes", "Total size of the regions with an access: `wss` of damo."),
    ),
    keys=("start_ns",),
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
        sample_assumed: whether ``sample_ns`` is DAMON's default, because the record has none.
        samples: maximum number of samples in a snapshot.
        monitored_bytes: mean size of the memory that DAMON monitored.
        working_set: damo's ``wss``, bytes of regions with an access: mean, percentiles, ``most``.
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
    """Wilson's 95 % interval of the share of a region's pages accessed in a sampling interval.

    Each sample looks at one page, at random, so ``hits`` of ``samples`` is binomial.
    """
    share, more = hits / samples, _Z * _Z / samples
    middle = share + more / 2
    spread = math.sqrt(share * (1 - share) * more + more * more / 4)
    return max(0.0, (middle - spread) / (1 + more)), min(1.0, (middle + spread) / (1 + more))


def heat(path: str | PathLike[str]) -> HeatResult:
    """Summarize a ``.heat`` file, which ``nearfar import --format damo`` writes.

    Raises:
        NearfarError: it is damaged or no ``.heat`` file.
    """
    record = damo.load(Path(path))
    sample_ns = record.sample_ns or _SAMPLE_NS
    begin = min(snapshot.start for snapshot in record.snapshots)
    end = max(snapshot.end for snapshot in record.snapshots)
    pieces = _split(record.snapshots)
    starts = [low for low, _ in pieces]
    # By piece: accessed and monitored byte-nanoseconds, and the time of the last access.
    hot, monitored, last = ([0.0] * len(pieces), [0.0] * len(pieces), [-1] * len(pieces))
    slots = min(_TIMES, len({snapshot.start for snapshot in record.snapshots}))
    # By time interval: the values of `_rows`, summed over snapshots, each times its duration.
    sums = [[0.0] * 4 for _ in range(slots)]
    working_sets: dict[int, list[int]] = {}
    max_samples, total = 1, 0.0
    for snapshot in record.snapshots:
        time = snapshot.end - snapshot.start
        hits = max((region[2] for region in snapshot.regions), default=0)
        samples = max(1, round(time / sample_ns), hits)
        max_samples = max(max_samples, samples)
        values = [0.0] * 4
        for low, high, count in snapshot.regions:
            size = high - low
            least, most = bounds(count, samples)
            share = count / samples
            parts = (least * size, share * size, most * size, size if count else 0)
            values = [value + part for value, part in zip(values, parts, strict=True)]
            total += size * time
            piece = bisect_right(starts, low) - 1
            while piece < len(pieces) and pieces[piece][0] < high:
                overlap = (min(high, pieces[piece][1]) - max(low, pieces[piece][0])) * time
                hot[piece] += share * overlap
                monitored[piece] += overlap
                if count:
                    last[piece] = max(last[piece], snapshot.end - begin)
                piece += 1
        working_sets.setdefault(snapshot.target, []).append(round(values[3]))
        slot = min(slots - 1, (snapshot.start + time // 2 - begin) * slots // (end - begin))
        sums[slot] = [sum_ + value * time for sum_, value in zip(sums[slot], values, strict=True)]
    edges = [(end - begin) * slot // slots for slot in range(slots + 1)]
    return HeatResult(
        heat=str(path),
        targets=len(working_sets),
        snapshots=len(record.snapshots),
        sample_ns=sample_ns,
        sample_assumed=record.sample_ns is None,
        samples=max_samples,
        monitored_bytes=round(total / (end - begin)),
        working_set=_statistics(working_sets),
        rows=_rows(edges, sums),
        pieces=[
            {"addr": low, "bytes": high - low, "share": hot[piece] / monitored[piece],
             "last_ns": None if last[piece] < 0 else last[piece]}
            for piece, (low, high) in enumerate(pieces) if monitored[piece]
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


def _statistics(by_target: Mapping[int, Sequence[int]]) -> dict[str, int]:
    """Mean and percentiles of the working set, as damo's ``wss``: the n-th snapshots of all targets
    are added up.
    """
    sizes = sorted(map(sum, zip_longest(*by_target.values(), fillvalue=0)))
    at = {"p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
    percentiles = {name: sizes[int(share * len(sizes))] for name, share in at.items()}
    return {"mean": round(sum(sizes) / len(sizes)), **percentiles, "most": sizes[-1]}


def _split(snapshots: Sequence[damo.Snapshot]) -> list[tuple[int, int]]:
    """Pieces of about equal size of all memory that DAMON monitored."""
    areas: list[list[int]] = []
    for low, high in sorted({region[:2] for snap in snapshots for region in snap.regions}):
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
