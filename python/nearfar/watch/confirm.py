"""``--confirm``: try the advised memory, and count what the kernel then has to read again.

Asks the kernel to reclaim at most a hundredth of the control group's memory at a time
(``memory.reclaim``) until no more is resident than was advised, holds it there for :data:`HOLD`
seconds in the same way, and reads refaults (``memory.stat``) and stalls (``memory.pressure``). It
stops at once if the target stalls for more than twice the accepted slowdown. Sets no limit, so that
nothing is to be restored: what was reclaimed comes back when it is used.
"""

from __future__ import annotations

import time
from collections import deque
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

#: Seconds between looks.
EVERY: Final = 0.02
#: The share of memory to reclaim in a second, at first and at most.
SLOWEST, FASTEST = 0.1, 100.0
#: A step reclaims at most this share of memory.
STEP: Final = squeeze.STEPS[1]
#: Seconds over which stalls are averaged before they can end the trial.
SPAN: Final = 1.0
#: Seconds at the advised memory.
HOLD: Final = 10.0
#: Seconds without progress after which the kernel is taken to reclaim no more.
STUCK: Final = 3.0
#: The memory is reached, and held on average, if it is exceeded by no more than these shares.
CLOSE, NEAR = 0.02, 0.05


@dataclass(frozen=True)
class Tried:
    """What was seen.

    Attributes:
        bytes: memory of processes that was resident, on average or when it stopped.
        seconds: how long it was held; 0 if it was not reached.
        faults: refaults a second, while it was held or in the second before it stopped.
        stalled: the share of that time in which a task waited for memory.
        stopped: why the advised memory was not held; None if it was.
    """

    bytes: int
    seconds: float
    faults: float
    stalled: float
    stopped: str | None


def lacks(target: Target, swap: str) -> str | None:
    """What is missing to try advice for a swap device, and how to get it; None if nothing is."""
    group = group_of(target)
    if group is None:
        return "the process shares its control group; give --cgroup, --unit or --container"
    missing = squeeze.lacks(replace(target, group=group))
    if missing is not None:
        return missing
    if not (group / "memory.pressure").is_file():
        return "this kernel does not measure stalls; boot with psi=1"
    if (swap == NONE) != (usual() == NONE):
        return f"the advice is for --swap {swap}, but this machine swaps to {usual()}"
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
        seconds: the most time for reaching it.
        progress: called now and then with the seconds so far.

    Returns:
        What was seen; None if the target has ended.
    """
    try:
        group = group_of(target)
        if group is not None:
            return _tried(target, group, goal, slowdown, seconds, progress)
    except OSError:
        pass  # the group is gone
    return None


def refuted(row: declared.Row, slowdown: float) -> bool:
    """Whether the advised memory was tried and was not enough for the accepted slowdown."""
    stalled = row["tried_slowdown"]
    return stalled is not None and (row["tried_stopped"] is not None or stalled > slowdown)


def _tried(
    target: Target,
    group: Path,
    goal: float,
    slowdown: float,
    seconds: float,
    progress: Callable[[float], None],
) -> Tried | None:
    """See :func:`confirm`."""
    begun, limit = time.monotonic(), max(2 * slowdown, squeeze.STALL)
    looks = deque([_Look.now(group)], maxlen=round(SPAN / EVERY) + 1)
    rate, least, lowered = SLOWEST, looks[0].bytes, begun
    held: list[_Look] = []
    while target.pids():
        look = looks[-1]
        _reclaim(group, min(look.bytes - goal, rate * EVERY * look.current), look.current)
        time.sleep(EVERY)
        looks.append(look := _Look.now(group))
        is_close = look.bytes <= goal * (1 + CLOSE)
        if is_close or look.bytes < least * (1 - STEP):
            least, lowered = look.bytes, look.at
        elif look.at - lowered > SPAN and rate < FASTEST:
            # As much comes back as is reclaimed.
            rate, least, lowered = 2 * rate, look.bytes, look.at
        if held or is_close:
            held.append(look)
        progress(look.at - begun)
        _, faults, stalled = looks[0].until(look)
        stopped = None
        if len(looks) == looks.maxlen and stalled > limit:
            share = units.percent(stalled)
            stopped = f"it waited for memory {share} of a second, above {units.percent(limit)}"
        elif not held and look.at - lowered > STUCK:
            stopped = "the kernel reclaimed no more"
        elif not held and look.at - begun > seconds:
            stopped = "--for was over"
        if stopped is not None:
            return Tried(look.bytes, 0.0, faults, stalled, stopped)
        if held and look.at - held[0].at >= HOLD:
            passed, faults, stalled = held[0].until(look)
            mean = sum(one.bytes for one in held) / len(held)
            if mean <= goal * (1 + NEAR):
                return Tried(round(mean), passed, faults, stalled, None)
            held = []  # too much came back: again, at a higher rate
    return None


def _reclaim(group: Path, count: float, current: int) -> None:
    """Reclaim ``count`` bytes in steps."""
    step = max(round(STEP * current), squeeze.LEAST)
    while count >= 1:
        squeeze.reclaim(group, round(min(count, step)))
        count -= step


@dataclass(frozen=True)
class _Look:
    """A group at one moment.

    Attributes:
        at: the time.
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
    def now(cls, group: Path) -> _Look:
        anonymous, file, stalled = squeeze.counts(group)
        memory = squeeze.statistics(group)
        return cls(
            time.monotonic(),
            memory["anon"] + memory["file_mapped"],
            int((group / "memory.current").read_text()),
            anonymous + file,
            stalled / 1e6,
        )

    def until(self, later: _Look) -> tuple[float, float, float]:
        """Seconds, refaults a second, and the share of time that was stalled."""
        seconds = later.at - self.at
        return (
            seconds,
            (later.refaults - self.refaults) / seconds,
            (later.stalled - self.stalled) / seconds,
        )
