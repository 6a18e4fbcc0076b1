"""Squeezing: the kernel reclaims memory step by step, and counts refaults.

Asks a control group to reclaim a little of its memory (``memory.reclaim``, since Linux 5.19),
waits, and reads the refaults of ``memory.stat`` and ``memory.pressure``. Steps are small at first,
because even the first may reclaim used memory, and grow to 1 % of memory while the target hardly
stalls; pauses keep to the budget. Ends early after a step in which the target stalled for
:data:`STALL` of the time. Sets no limit, so nothing has to be restored; reclaimed memory returns
when it is used.

Cannot: answer less than the smallest memory that the target had during the measurement.

Do not use: for what must not stall.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from nearfar.errors import NearfarError
from nearfar.watch.methods import Progress
from nearfar.watch.samples import Refaults, Watched, read
from nearfar.watch.target import Target

SUMMARY: Final = "reclaiming memory step by step and counting reclaimed pages that are used again"
#: In 9 of 10 comparisons, the need was up to 20 % less and 10 % more than the answer.
ERROR: Final = (0.2, 0.1)

#: The share of memory that a step reclaims, initially and at most.
STEPS: Final = (0.01 / 16, 0.01)
#: Seconds of a step, and the number of reclaims in it.
EVERY: Final = 0.5
PARTS: Final = 5
#: Minimum bytes that the kernel reclaims at a time (SWAP_CLUSTER_MAX pages).
LEAST: Final = 32 * 4096
#: Squeezing ends when tasks of the group stall for memory this share of a step.
STALL: Final = 0.02


def lacks(target: Target) -> str | None:
    """What is missing for the target."""
    if target.group is None:
        return "it reclaims memory of a control group; give --cgroup or --unit"
    if (target.group / "memory.usage_in_bytes").is_file():
        return (
            "the control group is of version 1, which has no memory.reclaim; boot with "
            "systemd.unified_cgroup_hierarchy=1"
        )
    if not (target.group / "memory.current").is_file():
        return (
            "the control group has no memory controller; name a group below the root that has one"
        )
    if not (target.group / "memory.reclaim").is_file():
        return "the group has no memory.reclaim (Linux 5.19 or later)"
    try:
        (target.group / "memory.reclaim").open("w").close()
    except OSError as error:
        return f"{target.group}: {error.strerror}; run as root, outside of a container"
    return None


def watch(target: Target, seconds: float, share: float, progress: Progress) -> Watched:
    """Observe the target; see :class:`nearfar.watch.methods.Method`."""
    group = target.group
    assert group is not None
    found = Watched()
    begun, cost = time.monotonic(), time.thread_time()
    try:
        before, step, due = counts(group), STEPS[0], 0.0
        since = begun
        while time.monotonic() - begun < seconds:
            due = spread(group, step * current(group), due, before[2])
            over = (time.thread_time() - cost) / share - (time.monotonic() - begun)
            time.sleep(max(min(over, begun + seconds - time.monotonic()), 0.0))
            after, now = counts(group), time.monotonic()
            passed, since = now - since, now
            anonymous, file, stalled = (
                (new - old) / passed for new, old in zip(after, before, strict=True)
            )
            before = after
            memory, private = current(group), statistics(group)["anon"]
            # The difference may be negative: the two are read one after the other.
            found.refaults.append(
                Refaults(private, max(memory - private, 0), anonymous, file, stalled / 1e6)
            )
            found.most = max(found.most, memory)
            found.seconds = time.monotonic() - begun
            progress(found)
            if stalled / 1e6 >= STALL:
                break
            step = next_step(step, stalled / 1e6)
    except OSError:
        found.ended = True
    found.last = read(target.pids()) or found.last
    found.seconds, found.cost = time.monotonic() - begun, time.thread_time() - cost
    if not found.refaults:
        raise NearfarError(f"{target.name}: ended before it could be watched")
    return found


def spread(group: Path, count: float, due: float, stalled: int) -> float:
    """Reclaim ``count`` bytes, in parts over :data:`EVERY` seconds.

    Reclaim ends early once stalls reach half of :data:`STALL` of this step's time, so that it
    takes little memory that is in use.

    Args:
        group: the control group.
        count: bytes of this step.
        due: bytes left by earlier steps, fewer than the kernel reclaims at a time.
        stalled: microseconds that the group had stalled before this step.

    Returns:
        Bytes left for the next step.
    """
    for _ in range(PARTS):
        due += count / PARTS
        if counts(group)[2] - stalled >= STALL / 2 * EVERY * 1e6:
            due = 0.0
        elif due >= LEAST:
            reclaim(group, round(due))
            due = 0.0
        time.sleep(EVERY / PARTS)
    return due


def next_step(step: float, stalled: float) -> float:
    """The step after ``step`` (shares of memory). ``stalled``: the share of time lost to stalls."""
    if stalled < STALL / 4:
        return min(2 * step, STEPS[1])
    return max(step / 2, STEPS[0]) if stalled >= STALL / 2 else step


def reclaim(group: Path, count: int) -> None:
    """Ask the kernel to reclaim ``count`` bytes; it may reclaim fewer."""
    with suppress(BlockingIOError, InterruptedError):  # EAGAIN: it reclaimed fewer
        (group / "memory.reclaim").write_text(str(count))


def current(group: Path) -> int:
    """All memory of a group."""
    return int((group / "memory.current").read_text())


def statistics(group: Path) -> dict[str, int]:
    """``memory.stat`` of a group."""
    lines = (group / "memory.stat").read_text().splitlines()
    return {key: int(value) for key, value in map(str.split, lines)}


def counts(group: Path) -> tuple[int, int, int]:
    """Refaults of anonymous memory and of files, and microseconds in which some task stalled."""
    found = statistics(group)
    try:
        pressure = (group / "memory.pressure").read_text()
    except OSError:
        pressure = ""  # this kernel does not measure it (psi=0)
    total = re.search(r"^some .*total=(\d+)", pressure)
    return (
        found.get("workingset_refault_anon", 0),
        found.get("workingset_refault_file", 0),
        int(total[1]) if total else 0,
    )
