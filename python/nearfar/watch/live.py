"""The present page faults and stalls of a watched target."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Final

from nearfar.watch.target import CGROUP, PROC, Target, group_of, stat

#: Indexes in :func:`nearfar.watch.target.stat`.
_MINOR, _MAJOR = 7, 9
_STALLED: Final = re.compile(r"^some avg10=([\d.]+)", re.M)


@dataclass(frozen=True)
class Look:
    """A target at one moment.

    Attributes:
        processes: how many it has.
        minor, major: page faults a second since the previous look, without and with a read from
            swap or a file; None at the first.
        stalled: the share of the last 10 s in which a task waited for memory (PSI); None if the
            kernel does not measure it.
        alone: whether ``stalled`` is of the target's control group, not of the machine.
    """

    processes: int
    minor: float | None
    major: float | None
    stalled: float | None
    alone: bool


@dataclass
class Looks:
    """Looks at a target; keeps the previous counts, for rates."""

    target: Target
    _before: dict[int, tuple[int, int]] = field(default_factory=dict)
    _at: float | None = None

    def __post_init__(self) -> None:
        """Find the control group of the target."""
        self._group = group_of(self.target)

    def look(self) -> Look:
        """The present state."""
        now, faults = time.monotonic(), {}
        for pid in self.target.pids():
            try:
                fields = stat(pid)
            except OSError:
                continue  # it has ended
            faults[pid] = int(fields[_MINOR]), int(fields[_MAJOR])
        minor = major = None
        if self._at is not None and now > self._at:
            # A process without a previous look is new: all its faults count.
            before, seconds = self._before, now - self._at
            minor, major = (
                sum(n[i] - before.get(pid, (0, 0))[i] for pid, n in faults.items()) / seconds
                for i in (0, 1)
            )
        self._before, self._at = faults, now
        stalled, alone = self._pressure()
        return Look(len(faults), minor, major, stalled, alone)

    def _pressure(self) -> tuple[float | None, bool]:
        of_group = (self._group or CGROUP) / "memory.pressure"
        for file, alone in ((of_group, self._group is not None), (PROC / "pressure/memory", False)):
            try:
                found = _STALLED.search(file.read_text())
            except OSError:
                continue
            if found:
                return float(found[1]) / 100, alone
        return None, False
