"""From working sets to faults: how much slower a target would be with less memory.

The rate at which a working set grows with its window is the rate of faults of a memory that just
holds it (Denning and Schwartz, *Properties of the Working-Set Model*, 1972, section 4): with
working sets W(t), memory W(t) has dW/dt faults a second. The device's time of each fault gives the
slowdown. Threads that go on while one of them waits are not counted, so that it is an upper bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nearfar.watch.samples import GROWTH, SHORTEST, WorkingSet

PAGE: Final = 4096


@dataclass(frozen=True)
class Prices:
    """Nanoseconds of a fault on a page of swap, and of a file."""

    swap: float
    file: float


@dataclass(frozen=True)
class Point:
    """A memory size.

    Attributes:
        seconds: the window whose working set it holds.
        anonymous, file: its bytes.
        faults: faults a second.
        slowdown: the share of time that they cost.
    """

    seconds: float
    anonymous: float
    file: float
    faults: float
    slowdown: float

    @property
    def bytes(self) -> float:
        """The memory."""
        return self.anonymous + self.file


def points(cycles: Sequence[Sequence[WorkingSet]], prices: Prices) -> list[Point]:
    """Memory sizes, smallest first, with falling slowdowns.

    The slowdown of a working set is that of its growth to the next. Growth falls with the window in
    any stationary program, so neighbours that rise are averaged (pool adjacent violators).
    """
    means = _means(cycles)
    steps = [
        (
            one,
            (two.seconds - one.seconds),
            max(two.anonymous - one.anonymous, 0.0) / PAGE,
            max(two.file - one.file, 0.0) / PAGE,
        )
        for one, two in zip(means, means[1:], strict=False)
    ]
    pools: list[list[float]] = []  # seconds, faults, nanoseconds, members
    for _, seconds, anonymous, file in steps:
        cost = anonymous * prices.swap + file * prices.file
        pools.append([seconds, anonymous + file, cost, 1])
        while len(pools) > 1 and pools[-2][2] * pools[-1][0] < pools[-1][2] * pools[-2][0]:
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    rates = [
        (faults / seconds, cost / seconds / 1e9)
        for seconds, faults, cost, members in pools
        for _ in range(int(members))
    ]
    return [
        Point(one.seconds, one.anonymous, one.file, faults, slowdown)
        for (one, *_), (faults, slowdown) in zip(steps, rates, strict=True)
    ]


def enough(curve: Sequence[Point], limit: float) -> Point | None:
    """The smallest memory whose slowdown is at most ``limit``; None if all have more.

    Between two points, the logarithm of the slowdown is linear in memory.
    """
    above = None
    for point in curve:
        if point.slowdown <= limit:
            if above is None:
                return point
            part = 0.0
            if point.slowdown < above.slowdown and point.slowdown > 0:
                part = math.log(point.slowdown / limit) / math.log(point.slowdown / above.slowdown)
            return Point(
                point.seconds + part * (above.seconds - point.seconds),
                point.anonymous + part * (above.anonymous - point.anonymous),
                point.file + part * (above.file - point.file),
                point.faults,
                min(limit, point.slowdown) if part == 0 else limit,
            )
        above = point
    return None


def _means(cycles: Sequence[Sequence[WorkingSet]]) -> list[WorkingSet]:
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
