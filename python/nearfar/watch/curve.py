"""The slowdown of a target with less memory, from working sets or from refaults.

With working sets W(t) of windows of length t, a memory of W(t) bytes has dW/dt faults a second
(Denning and Schwartz, *Properties of the Working-Set Model*, 1972, section 4). For a memory of the
mean of two windows' working sets, the derivative is the difference of these working sets divided by
that of the windows' lengths. The slowdown is the device's time of these faults: an upper bound, as
other threads may run while one waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from nearfar.watch.samples import GROWTH, SHORTEST, Refaults, WorkingSet

PAGE: Final = 4096
#: Above this ratio of the slowdowns of neighbouring memory sizes, :func:`enough` does not
#: interpolate. Programs of the bench that use pages singly, not in a loop over all, have at most 7.
CLIFF: Final = 8.0


@dataclass(frozen=True)
class Prices:
    """Nanoseconds of a fault on a page of swap, and of a file."""

    swap: float
    file: float


@dataclass(frozen=True)
class Point:
    """A memory size.

    Attributes:
        seconds: length of the window with this working set; 0 for refaults.
        anonymous, file: its bytes.
        faults: faults a second.
        slowdown: the time of these faults, as a share of elapsed time.
    """

    seconds: float
    anonymous: float
    file: float
    faults: float
    slowdown: float

    @property
    def bytes(self) -> float:
        """The memory size."""
        return self.anonymous + self.file


def of_cycles(cycles: Sequence[Sequence[WorkingSet]], prices: Prices) -> list[Point]:
    """The curve from working sets: memory sizes, smallest first, with falling slowdowns.

    A cycle has the working sets of growing windows that began together.
    """
    means = of_windows(cycles)
    steps = [
        _Step(
            WorkingSet(
                (one.seconds + two.seconds) / 2,
                (one.anonymous + two.anonymous) / 2,
                (one.file + two.file) / 2,
            ),
            two.seconds - one.seconds,
            (two.anonymous - one.anonymous) / PAGE,
            (two.file - one.file) / PAGE,
        )
        for one, two in zip(means, means[1:], strict=False)
    ]
    return _falling(steps, prices)


def of_refaults(refaults: Sequence[Refaults], seconds: float, prices: Prices) -> list[Point]:
    """The curve from refaults: memory sizes, smallest first, with falling slowdowns.

    Args:
        refaults: the observations.
        seconds: the length of each.
        prices: times of faults.
    """
    steps = [
        _Step(
            WorkingSet(seconds=0.0, anonymous=one.anonymous_bytes, file=one.file_bytes),
            seconds,
            one.anonymous * seconds,
            one.file * seconds,
        )
        for one in sorted(refaults, key=lambda one: one.anonymous_bytes + one.file_bytes)
    ]
    return _falling(steps, prices)


class _Step(NamedTuple):
    """A memory size, and its faults on swap and on files within ``seconds``."""

    memory: WorkingSet
    seconds: float
    anonymous: float
    file: float


def _falling(steps: Sequence[_Step], prices: Prices) -> list[Point]:
    """The slowdown of each step. Where it would rise, neighbours are averaged (pool adjacent
    violators), because more memory does not cause more faults."""
    pools: list[tuple[float, float, float, int]] = []  # seconds, faults, nanoseconds, steps
    for step in steps:
        cost = step.anonymous * prices.swap + step.file * prices.file
        pools.append((step.seconds, step.anonymous + step.file, cost, 1))
        while len(pools) > 1 and pools[-2][2] * pools[-1][0] < pools[-1][2] * pools[-2][0]:
            last, before = pools.pop(), pools.pop()
            pools.append(
                (before[0] + last[0], before[1] + last[1], before[2] + last[2], before[3] + last[3])
            )
    rates = [
        (faults / seconds, cost / seconds / 1e9)
        for seconds, faults, cost, count in pools
        for _ in range(count)
    ]
    return [
        Point(step.memory.seconds, step.memory.anonymous, step.memory.file, faults, slowdown)
        for step, (faults, slowdown) in zip(steps, rates, strict=True)
    ]


def enough(curve: Sequence[Point], limit: float) -> Point | None:
    """The smallest memory whose slowdown is at most ``limit``; None if all have more.

    Between two points, the logarithm of the slowdown is linear in memory, unless it falls by more
    than :data:`CLIFF`: then a loop over memory begins to fit somewhere between, and the larger
    memory is returned.
    """
    above = None
    for point in curve:
        if point.slowdown <= limit:
            if above is None:
                return point
            part = 0.0
            if point.slowdown < above.slowdown < CLIFF * point.slowdown:
                part = math.log(point.slowdown / limit) / math.log(point.slowdown / above.slowdown)
            return Point(
                seconds=point.seconds + part * (above.seconds - point.seconds),
                anonymous=point.anonymous + part * (above.anonymous - point.anonymous),
                file=point.file + part * (above.file - point.file),
                faults=point.faults * limit / point.slowdown if part else point.faults,
                slowdown=limit if part else point.slowdown,
            )
        above = point
    return None


def of_windows(cycles: Sequence[Sequence[WorkingSet]]) -> list[WorkingSet]:
    """Mean working sets by window, shortest first, never smaller than those of shorter windows."""
    by_step: dict[int, list[WorkingSet]] = {}
    for cycle in cycles:
        for one in cycle:
            step = round(math.log(one.seconds / SHORTEST, GROWTH))
            by_step.setdefault(step, []).append(one)
    found: list[WorkingSet] = []
    for _, group in sorted(by_step.items()):
        count = len(group)
        mean = WorkingSet(
            sum(one.seconds for one in group) / count,
            sum(one.anonymous for one in group) / count,
            sum(one.file for one in group) / count,
        )
        if found:
            last = found[-1]
            mean = WorkingSet(
                mean.seconds, max(mean.anonymous, last.anonymous), max(mean.file, last.file)
            )
            if mean.seconds <= last.seconds:
                continue
        found.append(mean)
    return found
