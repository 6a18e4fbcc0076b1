"""``--confirm``: try the advised memory, and count refaults and stalls.

Asks the kernel to reclaim at most a hundredth of the control group's memory at a time
(``memory.reclaim``) until no more than the advised memory is resident, then holds it there for
:data:`HOLD` seconds in the same way, and reads refaults (``memory.stat``) and stalls
(``memory.pressure``). Stops if the share of time in stalls exceeds both twice the accepted slowdown
and :data:`.squeeze.STALL`. Sets no limit, so nothing has to be restored: reclaimed memory returns
when it is used.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from nearfar import units
from nearfar.size.swap import NONE, usual
from nearfar.watch.methods import squeeze
from nearfar.watch.target import group_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from nearfar.declared import watch as declared
    from nearfar.watch.target import Target

#: Seconds between samples.
EVERY: Final = 0.02
#: Shares of memory to reclaim in a second: initially, and at most.
SLOWEST, FASTEST = 0.1, 100.0
#: A step reclaims at most this share of memory.
STEP: Final = squeeze.STEPS[1]
#: Seconds over which stalls are averaged, and after which reclaim without progress speeds up.
SPAN: Final = 1.0
#: Seconds at the advised memory.
HOLD: Final = 10.0
#: Seconds without progress after which the trial ends.
STUCK: Final = 3.0
#: Tolerances, as shares of the advised memory: to reach it, and to hold it on average.
CLOSE, NEAR = 0.02, 0.05


@dataclass(frozen=True)
class Tried:
    """The outcome of a trial.

    Attributes:
        bytes: resident memory of the processes: the mean, or that when the trial stopped.
        faults: refaults a second, while the memory was held, or in the second before the trial
            stopped.
        stalled: the share of the same time in which a task waited for memory.
        stopped: why the advised memory was not held; None if it was.
    """

    bytes: int
    faults: float
    stalled: float
    stopped: str | None


def lacks(target: Target, swap: str) -> str | None:
    """What is missing to try advice for a swap device, and how to get it; None if nothing is."""
    group = group_of(target)
    if group is None:
        return (
            "the process shares its control group with others; give --cgroup, --unit or --container"
        )
    missing = squeeze.lacks(replace(target, group=group))
    if missing is not None:
        return missing
    if not (group / "memory.pressure").is_file():
        return "this kernel does not measure stalls; boot with psi=1"
    if (swap == NONE) != (usual() == NONE):
        return f"the advice is for --swap {swap}, but the swap of this machine is {usual()}"
    return None


def confirm(
    target: Target,
    goal: float,
    slowdown: float,
    seconds: float,
    progress: Callable[[float], None],
) -> Tried | None:
    """Try whether ``goal`` bytes are enough.

    Args:
        target: what was watched.
        goal: the advised memory.
        slowdown: the accepted slowdown.
        seconds: the time limit to reach ``goal``.
        progress: called now and then with the seconds so far.

    Returns:
        The outcome; None if the target has ended.
    """
    with suppress(OSError):  # the group is gone
        group = group_of(target)
        if group is not None:
            return _try(target, group, goal, slowdown, seconds, progress)
    return None


def refuted(row: declared.Row, slowdown: float) -> bool:
    """Whether the advised memory was tried and was not enough for the accepted slowdown."""
    stalled = row["tried_slowdown"]
    return stalled is not None and (row["tried_stopped"] is not None or stalled > slowdown)


def _try(
    target: Target,
    group: Path,
    goal: float,
    slowdown: float,
    seconds: float,
    progress: Callable[[float], None],
) -> Tried | None:
    begun, limit = time.monotonic(), max(2 * slowdown, squeeze.STALL)
    samples = deque([_Sample.now(group)], maxlen=round(SPAN / EVERY) + 1)
    rate, least, lowered_at = SLOWEST, samples[0].bytes, begun
    held: list[_Sample] = []
    while target.pids():
        sample = samples[-1]
        _reclaim(group, min(sample.bytes - goal, rate * EVERY * sample.current), sample.current)
        time.sleep(EVERY)
        samples.append(sample := _Sample.now(group))
        is_close = sample.bytes <= goal * (1 + CLOSE)
        if is_close or sample.bytes < least * (1 - STEP):
            least, lowered_at = sample.bytes, sample.at
        elif sample.at - lowered_at > SPAN and rate < FASTEST:
            # The target takes back as much as is reclaimed.
            rate, least, lowered_at = 2 * rate, sample.bytes, sample.at
        if held or is_close:
            held.append(sample)
        progress(sample.at - begun)
        faults, stalled = samples[0].until(sample)
        stopped = None
        if len(samples) == samples.maxlen and stalled > limit:
            share = units.percent(stalled)
            stopped = f"it waited for memory {share} of a second, above {units.percent(limit)}"
        elif not held and sample.at - lowered_at > STUCK:
            stopped = "the kernel reclaimed no more"
        elif not held and sample.at - begun > seconds:
            stopped = "the trial took longer than --for"
        if stopped is not None:
            return Tried(sample.bytes, faults, stalled, stopped)
        if held and sample.at - held[0].at >= HOLD:
            faults, stalled = held[0].until(sample)
            mean = sum(one.bytes for one in held) / len(held)
            if mean <= goal * (1 + NEAR):
                return Tried(round(mean), faults, stalled, None)
            held = []  # the target took back too much: try again
    return None


def _reclaim(group: Path, count: float, current: int) -> None:
    """Reclaim ``count`` bytes in steps."""
    step = max(round(STEP * current), squeeze.LEAST)
    while count >= 1:
        squeeze.reclaim(group, round(min(count, step)))
        count -= step


@dataclass(frozen=True)
class _Sample:
    """A group at one moment.

    Attributes:
        at: monotonic time, seconds.
        bytes: memory of its processes: anonymous, and mapped files.
        current: all memory of the group.
        refaults: pages that were reclaimed and used again, so far.
        stalled: seconds in which some task waited for memory, so far.
    """

    at: float
    bytes: int
    current: int
    refaults: int
    stalled: float

    @classmethod
    def now(cls, group: Path) -> _Sample:
        anonymous, file, stalled = squeeze.counts(group)
        memory = squeeze.statistics(group)
        return cls(
            time.monotonic(),
            memory["anon"] + memory["file_mapped"],
            squeeze.current(group),
            anonymous + file,
            stalled / 1e6,
        )

    def until(self, later: _Sample) -> tuple[float, float]:
        """Refaults a second, and the share of time that was stalled."""
        seconds = later.at - self.at
        refaults, stalled = later.refaults - self.refaults, later.stalled - self.stalled
        return refaults / seconds, stalled / seconds
