"""Watch a run of ``nearfar run`` from another process.

>>> import nearfar.live_watch
>>> nearfar.live_watch.snapshot(1234).table                     # doctest: +SKIP
>>> for snapshot in nearfar.live_watch.watch():                 # doctest: +SKIP
...     print(snapshot)
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypedDict

from nearfar import _engine
from nearfar.declared import run as declared
from nearfar.result import Result

if TYPE_CHECKING:
    import pyarrow

#: Seconds between snapshots.
SECOND: Final = 1.0
#: Seconds between checks whether the run has ended.
_STEP: Final = 0.1


class WatchedRun(TypedDict):
    """A run as a whole (``crates/live/src/watch.rs``)."""

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


class _Look(WatchedRun, total=False):
    """What ``_engine.LiveWatch.look`` returns."""

    rows: list[declared.WatchRow]


@dataclass(frozen=True)
class Snapshot(Result):
    """The state of a run at one moment.

    Attributes:
        run: PID of the launcher (``nearfar run``), seconds since the start, policy, far tier,
            memory limits of a process, number of process images so far; whether and how the run
            has ended.
        rows: the whole run, then each running process (docs/run.md describes the keys).
    """

    shown = "nearfar.report.live:watch"

    run: WatchedRun
    rows: list[declared.WatchRow]

    @property
    def table(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``."""
        return declared.WATCH_ROWS.table(self.rows)


def watch(pid: int | None = None, every: float = SECOND) -> Iterator[Snapshot]:
    """Snapshots of a run until it ends, with rates since the one before. The run is not disturbed.

    Args:
        pid: the launcher or a managed process of the run; None if there is only one run.
        every: seconds between snapshots.

    Yields:
        A snapshot at once, then regularly, and at the end of the run.

    Raises:
        NearfarError: there is no such run, or several; it is another user's or another version's.
    """
    # Not a generator itself, so that errors are raised by the call.
    return _snapshots(_engine.LiveWatch(pid), every)


def snapshot(pid: int | None = None) -> Snapshot:
    """The state of a run, with rates over a second.

    Args:
        pid: as for :func:`watch`.

    Raises:
        NearfarError: as :func:`watch`.
    """
    snapshots = watch(pid)
    first = next(snapshots)
    return next(snapshots, first)


def runs() -> dict[int, str]:
    """The active runs: launchers and their command lines."""
    return dict(_engine.live_runs())


def _snapshots(watched: _engine.LiveWatch, every: float) -> Iterator[Snapshot]:
    while True:
        look: _Look = json.loads(watched.look())
        rows = look.pop("rows")
        yield Snapshot(look, rows)
        if look["is_over"]:
            return
        due = time.monotonic() + every
        while not watched.is_over() and (left := due - time.monotonic()) > 0:
            time.sleep(min(_STEP, left))
