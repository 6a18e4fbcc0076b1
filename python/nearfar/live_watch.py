"""A run that is under way, seen from another process.

>>> import nearfar.live_watch
>>> nearfar.live_watch.snapshot(1234).table                     # doctest: +SKIP
>>> for one in nearfar.live_watch.watch():                      # doctest: +SKIP
...     print(one)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypedDict

from nearfar import _engine
from nearfar.declared import run as declared
from nearfar.result import Result

#: Seconds from one look to the next.
SECOND: Final = 1.0
#: How often it is seen whether the run is over meanwhile.
_STEP: Final = 0.1


class WatchedRun(TypedDict):
    """The run as a whole (``crates/live/src/watch.rs``)."""

    launcher: int
    seconds: float
    policy: str
    far: str
    fast_bytes: int
    far_size_bytes: int
    images: int
    is_over: bool
    exit_code: int | None
    why: str | None


@dataclass(frozen=True)
class Snapshot(Result):
    """What a run looked like at a moment.

    Attributes:
        run: launcher, seconds since it began, policy, far tier, budgets of a process, process
            images so far; whether it is over, and how it ended.
        rows: the whole run, then each process that runs now (docs/run.md names the keys).
    """

    shown = "nearfar.report.live:watch"

    run: WatchedRun
    rows: list[declared.WatchRow]

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        return declared.WATCH_ROWS.table(self.rows)


def watch(pid: int | None = None, every: float = SECOND) -> Iterator[Snapshot]:
    """Look at a run until it is over; rates are over the time from one look to the next.

    The run does not notice.

    Args:
        pid: its launcher, or a program that it manages; None for the only run there is.
        every: seconds from one look to the next.

    Yields:
        What it looks like at once, then every so many seconds, and at its end.

    Raises:
        NearfarError: no such run, several, another user's or another version's.
    """
    # At once, not at the first look.
    return _looks(_engine.LiveWatch(pid), every)


def snapshot(pid: int | None = None) -> Snapshot:
    """What a run looks like now, with its rates over a second.

    Args:
        pid: as :func:`watch` takes it.

    Raises:
        NearfarError: as :func:`watch`.
    """
    looks = watch(pid)
    first = next(looks)
    return next(looks, first)


def runs() -> dict[int, str]:
    """Runs that are under way: launchers and their command lines."""
    return dict(_engine.live_runs())


def _looks(watched: _engine.LiveWatch, every: float) -> Iterator[Snapshot]:
    while True:
        found = json.loads(watched.look())
        rows = found.pop("rows")
        yield Snapshot(found, rows)
        if found["is_over"]:
            return
        due = time.monotonic() + every
        while not watched.is_over() and (left := due - time.monotonic()) > 0:
            time.sleep(min(_STEP, left))
