"""Observations of a running target: memory, working sets, refaults.

A cycle finds the memory that is used within each of several windows, which begin together.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from nearfar.errors import NearfarError
from nearfar.watch.target import PROC, Target

KIB: Final = 1024
#: Each window is longer than the one before by this factor.
GROWTH: Final = 1.4
#: The shortest window, in seconds; in a shorter one, the time of a read would matter.
SHORTEST: Final = 0.02
#: The longest window, in seconds.
LONGEST: Final = 30.0

#: A memory area (VMA) in smaps: start, end, inode, name, and KiB by key.
_AREA: Final = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+) *([^\n]*)\n"
    rb".*?^Rss: *(\d+) .*?^Pss: *(\d+) .*?^Private_Clean: *(\d+) .*?^Private_Dirty: *(\d+) "
    rb".*?^Referenced: *(\d+) .*?^Anonymous: *(\d+) "
    rb".*?^Swap: *(\d+) .*?^SwapPss: *(\d+) .*?^Locked: *(\d+) ",
    re.M | re.S,
)
#: Names of areas of shared memory. Such areas have an inode, but are swapped like anonymous memory.
_SHARED: Final = re.compile(rb"/dev/zero|/SYSV|/memfd:|/dev/shm/|\[anon_shmem")


class Area(NamedTuple):
    """An area of a process: addresses, and bytes as ``/proc/PID/smaps`` has them.

    Shared memory counts as anonymous; ``shared`` is its inode, else 0. ``own`` is the resident
    memory that no other process maps.
    """

    start: int
    end: int
    rss: int
    pss: int
    own: int
    referenced: int
    anonymous: int
    swap: int
    swap_pss: int
    locked: int
    shared: int = 0


@dataclass(frozen=True)
class Memory:
    """Memory of a target at one moment, in bytes; shared memory is divided among processes.

    Attributes:
        anonymous: resident memory that can be reclaimed only by swapping it.
        file: resident pages of mapped files.
        used_anonymous: the part of ``anonymous`` whose accessed bit is set.
        used_file: the part of ``file`` whose accessed bit is set.
        swapped: in swap.
        locked: cannot be reclaimed.
    """

    anonymous: float = 0
    file: float = 0
    used_anonymous: float = 0
    used_file: float = 0
    swapped: float = 0
    locked: float = 0

    @property
    def resident(self) -> float:
        """The resident set."""
        return self.anonymous + self.file

    @property
    def private(self) -> float:
        """Anonymous memory, resident or swapped."""
        return self.anonymous + self.swapped


@dataclass(frozen=True)
class WorkingSet:
    """Memory that was used within a window, in bytes.

    Attributes:
        seconds: the length of the window.
        anonymous: anonymous memory, without what was new in the window.
        file: pages of mapped files.
    """

    seconds: float
    anonymous: float
    file: float


@dataclass(frozen=True)
class Refaults:
    """Refaults (uses of reclaimed pages) at one memory size.

    Attributes:
        anonymous_bytes, file_bytes: the memory size.
        anonymous, file: refaults a second.
        stalled: the share of time in which a task waited for memory.
    """

    anonymous_bytes: int
    file_bytes: int
    anonymous: float
    file: float
    stalled: float


@dataclass
class Watched:
    """What a method has observed: ``cycles`` or ``refaults``.

    Attributes:
        cycles: working sets of growing windows that began together.
        refaults: at several memory sizes.
        seconds: how long the target was watched.
        cost: processor time of the observation, in seconds.
        most: the largest resident memory, in bytes.
        last: memory at the end.
        ended: whether the target ended before the end of the watch.
    """

    cycles: list[list[WorkingSet]] = field(default_factory=list)
    refaults: list[Refaults] = field(default_factory=list)
    seconds: float = 0.0
    cost: float = 0.0
    most: float = 0.0
    last: Memory = field(default_factory=Memory)
    ended: bool = False

    def add(self, memory: Memory) -> None:
        """Record the memory that was read last."""
        self.most, self.last = max(self.most, memory.resident), memory


def read(pids: Sequence[int]) -> Memory | None:
    """Memory of processes; None if none of them exists any more."""
    total = dict.fromkeys(Memory.__dataclass_fields__, 0.0)
    swapped: dict[int, int] = {}
    same: dict[tuple[int, int], list[Area]] = {}
    by_process = [found for found in map(areas, pids) if found is not None]
    for found in by_process:
        for area in found:
            if area.shared:
                # Each process counts all swapped pages of the shared memory.
                swapped[area.shared] = max(swapped.get(area.shared, 0), area.swap)
            else:
                # SwapPss does not count the pages of a tmpfs file; Swap does.
                total["swapped"] += area.swap_pss or area.swap
            total["locked"] += area.locked
            share = area.pss / area.rss if area.rss else 1.0
            total["anonymous"] += area.anonymous * share
            total["file"] += (area.rss - area.anonymous) * share
            # Forked processes share memory at the same address.
            same.setdefault((area.shared, 0 if area.shared else area.start), []).append(area)
    for group in same.values():
        used_bytes = used(group)
        part = sum(area.anonymous for area in group) / (sum(area.rss for area in group) or 1)
        total["used_anonymous"] += used_bytes * part
        total["used_file"] += used_bytes * (1 - part)
    total["swapped"] += sum(swapped.values())
    return Memory(**total) if by_process else None


def used(same: Sequence[Area]) -> float:
    """Bytes of an area that any process has used; ``same``: the area in each process.

    Each process is assumed to use shared pages at random.
    """
    shared = sum(area.pss - area.own for area in same)
    # Other programs may map the pages too; together, the pages are at least what one process maps.
    shared_size = max([shared, *(area.rss - area.own for area in same)])
    used_own, unused_share = 0.0, 1.0
    for area in same:
        own_share = area.own / area.rss if area.rss else 1.0
        used_own += area.referenced * own_share
        if shared_size:
            unused_share *= 1 - min(area.referenced * (1 - own_share) / shared_size, 1.0)
    return used_own + shared * (1 - unused_share)


def areas(pid: int) -> list[Area] | None:
    """The areas of a process; None if it has ended or may not be read."""
    try:
        text = (PROC / str(pid) / "smaps").read_bytes()
    except OSError:
        return None
    if not text:
        return None
    found = []
    for start, end, inode, name, *words in _AREA.findall(text):
        rss, pss, clean, dirty, *rest = (KIB * int(word) for word in words)
        area = Area(int(start, 16), int(end, 16), rss, pss, clean + dirty, *rest)
        if _SHARED.match(name):
            area = area._replace(anonymous=area.rss, shared=int(inode))
        found.append(area)
    return found


def peak(target: Target) -> int:
    """The peak resident set in bytes, since each process or the group began; an upper bound."""
    if target.group is not None:
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            if (target.group / name).is_file():
                return int((target.group / name).read_text())
    total = 0
    for pid in target.pids():
        try:
            text = (PROC / str(pid) / "status").read_text(errors="replace")
        except OSError:
            continue
        total += sum(int(found) * KIB for found in re.findall(r"^VmHWM:\s+(\d+) kB", text, re.M))
    return total


def lengths(seconds: float) -> list[float]:
    """Lengths of cycles that take at most ``seconds`` together: few long ones, many short ones."""
    if seconds < 40 * SHORTEST:
        raise NearfarError(f"--for: {seconds:g} s is too short; give at least 1s")
    long = min(seconds / 4, LONGEST)
    found = [long] * 2
    # The short cycles added below take 0.75 * long.
    while sum(found) + 0.75 * long <= seconds:
        found += [long / 4] * 2 + [long / 16] * 4
    return found


def windows(length: float) -> list[float]:
    """Lengths of the windows of a cycle; the last is that of the cycle."""
    found = [SHORTEST]
    while found[-1] * GROWTH < length:
        found.append(found[-1] * GROWTH)
    # ``length`` replaces the last one, which may be almost as long.
    return [*found[:-1], length]


def cycles(
    target: Target,
    planned: Sequence[float],
    share: float,
    progress: Callable[[Watched], None],
    begin: Callable[[Sequence[int]], object],
    used: Callable[[Memory], tuple[float, float]],
) -> Watched:
    """Observe cycles of growing windows.

    Args:
        target, share, progress: as for :class:`nearfar.watch.methods.Method`.
        planned: the length of each cycle, in seconds.
        begin: begins a cycle for processes.
        used: returns the bytes of anonymous memory and of files that were used since ``begin``.

    Raises:
        NearfarError: the target ended too early, or reading its memory costs more than ``share``.
    """
    found = Watched()
    start, cost = time.monotonic(), time.thread_time()
    for length in planned:
        pids = target.pids()
        before = time.thread_time()
        first = read(pids)
        read_cost = time.thread_time() - before
        # A cycle has at least two reads, and ``begin`` costs about one.
        if not found.cycles and 3 * read_cost > share * planned[0]:
            raise NearfarError(
                f"{target.name}: reading its memory takes {read_cost:.2g} s, too much for a budget "
                f"of {share:.1%} in windows of {planned[0]:.3g} s; give more time (--for) or "
                "--budget"
            )
        begin(pids)
        since = time.monotonic()
        cycle: list[WorkingSet] = []
        found.cycles.append(cycle)  # ``progress`` sees it grow
        for window in windows(length):
            time.sleep(max(since + window - time.monotonic(), 0.0))
            is_last = window == length
            spent = time.thread_time() - cost
            # Skip a window unless the budget suffices for four reads: this one, the last of the
            # cycle, and the first and ``begin`` of the next.
            if not is_last and spent + 4 * read_cost > share * (since + window - start):
                continue
            begun = time.thread_time()
            passed = time.monotonic() - since
            memory = read(pids)
            read_cost = time.thread_time() - begun
            if first is None or memory is None:
                found.ended = True
                break
            new = max(memory.private - first.private, 0.0)
            anonymous, file = used(memory)
            cycle.append(WorkingSet(passed, max(anonymous - new, 0.0), file))
            found.add(memory)
            found.seconds = time.monotonic() - start
            progress(found)
        found.cycles = [each for each in found.cycles if each]
        found.seconds, found.cost = time.monotonic() - start, time.thread_time() - cost
        if found.ended:
            break
    if not found.cycles:
        raise NearfarError(f"{target.name}: ended before it could be watched")
    return found
