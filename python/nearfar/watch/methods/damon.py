"""DAMON: the kernel samples regions of virtual memory and merges those with similar use.

Starts a monitor of the target's processes (``/sys/kernel/mm/damon/admin``, operations ``fvaddr`` on
the areas that have memory) with the kernel's default intervals, 5 ms samples and 100 ms
aggregation, and reads the access count and age of each region
(Documentation/admin-guide/mm/damon/usage.rst). If the kernel's thread uses more than half of the
budget (a share of a processor) in a trial, the intervals grow accordingly; the other half is for
reading the regions. With operations ``vaddr``, most regions would be unused addresses between
areas. DAMON sees memory of virtual machines, and its cost does not grow with memory.

Do not use: for small programs, because a region counts as a whole. Refuses if somebody else uses
DAMON. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from nearfar.errors import NearfarError
from nearfar.watch.methods import Progress
from nearfar.watch.samples import Watched, WorkingSet, areas, read, windows
from nearfar.watch.target import Target, stat

SUMMARY: Final = "DAMON, which samples regions"
ERROR: Final = (0.6, 0.1)

ADMIN: Final = Path("/sys/kernel/mm/damon/admin/kdamonds")
#: Kernel modules that exclude other users of DAMON (mm/damon).
EXCLUSIVE: Final = ("damon_reclaim", "damon_lru_sort", "damon_stat")
#: Initial seconds of a sample, and samples of an aggregation.
SAMPLE: Final = 0.005
SAMPLES: Final = 20
#: Minimum seconds between reads of the regions, and seconds of a trial of the thread's cost.
EVERY: Final = 1.0
TRIAL: Final = 2.0
#: Minimum and maximum number of regions.
REGIONS: Final = (200, 1000)


def lacks(target: Target) -> str | None:
    """What is missing for the target."""
    del target
    if not ADMIN.is_dir():
        return "this kernel has no DAMON (CONFIG_DAMON_SYSFS)"
    if not os.access(ADMIN / "nr_kdamonds", os.W_OK):
        return "DAMON needs root"
    if int((ADMIN / "nr_kdamonds").read_text()):
        return "somebody else uses DAMON"
    for name in EXCLUSIVE:
        enabled = Path(f"/sys/module/{name}/parameters/enabled")
        if enabled.is_file() and enabled.read_text().strip() == "Y":
            return f"the kernel itself uses DAMON ({name})"
    try:
        with _created() as context:
            if "fvaddr" not in (context / "avail_operations").read_text().split():
                return "this kernel's DAMON cannot watch virtual addresses (CONFIG_DAMON_VADDR)"
    except OSError as error:
        return f"DAMON refuses: {error.strerror}"
    return None


def watch(target: Target, seconds: float, share: float, progress: Progress) -> Watched:
    """Observe the target; see :class:`nearfar.watch.methods.Method`."""
    found = Watched()
    started, cost = time.monotonic(), time.thread_time()
    with _created() as context:
        kdamond, state = context.parent.parent, context.parent.parent / "state"
        _set_up(context, target.pids(), SAMPLE)
        state.write_text("on")
        time.sleep(min(TRIAL, seconds / 4))
        trial_cost = _processor_time(kdamond)
        sample = slower(SAMPLE, trial_cost / (time.monotonic() - started), share)
        if 4 * sample * SAMPLES > seconds:
            raise NearfarError(
                f"{target.name}: with a budget of {share:.1%} DAMON samples every {sample:.2g} s, "
                "too rarely; give more time (--for) or --budget"
            )
        if sample > SAMPLE:
            state.write_text("off")
            _set_up(context, target.pids(), sample)
            state.write_text("on")
        else:
            trial_cost = 0.0  # the monitor's thread continues; its time includes the trial
        begun, read_cost = time.monotonic(), 0.0
        while time.monotonic() - started < seconds:
            left = started + seconds - time.monotonic()
            time.sleep(max(EVERY, min(2 * read_cost / share, left)))
            before = time.thread_time()
            pids = target.pids()
            memory = read(pids)
            if memory is None:
                found.ended = True
                break
            try:
                state.write_text("update_schemes_tried_regions")
            except OSError:
                found.ended = True  # the monitor ends with its processes
                break
            longest = max(time.monotonic() - begun, 2 * sample * SAMPLES)
            # If DAMON's thread is late, the kernel shows no region yet.
            if sets := _working_sets(context, pids, longest, sample):
                found.cycles.append(sets)
            found.add(memory)
            read_cost = time.thread_time() - before
            found.cost = time.thread_time() - cost + trial_cost + _processor_time(kdamond)
            found.seconds = time.monotonic() - started
            progress(found)
    found.seconds = time.monotonic() - started
    if not found.cycles:
        why = "ended before it could be watched" if found.ended else "DAMON shows no region"
        raise NearfarError(f"{target.name}: {why}; give more time (--for)")
    # Earlier reads cover only shorter windows.
    found.cycles = found.cycles[len(found.cycles) // 2 :]
    return found


def slower(sample: float, used: float, share: float) -> float:
    """Seconds of a sample with which the kernel's thread uses half of ``share``.

    With samples of ``sample`` seconds it uses ``used`` of a processor.
    """
    return sample * max(used / (share / 2), 1.0)


@contextmanager
def _created() -> Iterator[Path]:
    """A monitor; a guard process removes it at the end of the block, or when this process dies."""
    off = f"read line; echo off > {ADMIN}/0/state; echo 0 > {ADMIN}/nr_kdamonds"
    with subprocess.Popen(
        ["sh", "-c", off],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as guard:
        try:
            (ADMIN / "nr_kdamonds").write_text("1")
            (ADMIN / "0/contexts/nr_contexts").write_text("1")
            yield ADMIN / "0/contexts/0"
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()


def _set_up(context: Path, pids: list[int], sample: float) -> None:
    def put(name: str, value: object) -> None:
        (context / name).write_text(str(value))

    put("operations", "fvaddr")
    put("monitoring_attrs/intervals/sample_us", round(sample * 1e6))
    put("monitoring_attrs/intervals/aggr_us", round(SAMPLES * sample * 1e6))
    put("monitoring_attrs/nr_regions/min", REGIONS[0])
    put("monitoring_attrs/nr_regions/max", REGIONS[1])
    put("targets/nr_targets", len(pids))
    for number, pid in enumerate(pids):
        put(f"targets/{number}/pid_target", pid)
        resident = _Areas([pid]).areas
        put(f"targets/{number}/regions/nr_regions", len(resident))
        for area, (start, end, *_) in enumerate(resident):
            put(f"targets/{number}/regions/{area}/start", start)
            put(f"targets/{number}/regions/{area}/end", end)
    # A scheme that matches all regions and does nothing makes them visible.
    put("schemes/nr_schemes", 1)
    put("schemes/0/action", "stat")
    for name, most in (("sz", 1 << 62), ("nr_accesses", 1 << 31), ("age", 1 << 31)):
        put(f"schemes/0/access_pattern/{name}/min", 0)
        put(f"schemes/0/access_pattern/{name}/max", most)


def _working_sets(
    context: Path, pids: list[int], longest: float, sample: float
) -> list[WorkingSet]:
    """Working sets of windows up to ``longest``; none if the kernel shows no region.

    If a region was used in k of the samples of an aggregation, a share p = k / samples of it is
    assumed to be used in one sample, and 1 - (1 - p)^n in n samples. A region that was not used is
    assumed to be used as a whole at its last use, unless that was before the monitor began.
    """
    memory = _Areas(pids)
    # Bytes of anonymous memory and of files, share of samples that used it, idle seconds.
    regions: list[tuple[float, float, float, float]] = []
    for folder in (context / "schemes/0/tried_regions").glob("[0-9]*"):
        start, end, count, age = (
            int((folder / name).read_text()) for name in ("start", "end", "nr_accesses", "age")
        )
        anonymous, file = memory.within(start, end)
        regions.append((anonymous, file, count / SAMPLES, age * SAMPLES * sample))
    # A region idle for about the longest time was not used since the monitor began.
    since_began = 0.9 * max((idle for *_, idle in regions), default=0.0)
    found = []
    for window in windows(longest) if regions else ():
        used = [
            1 - (1 - min(part, 1.0)) ** (window / sample)
            if part
            else float(idle <= window and idle < since_began)
            for _, _, part, idle in regions
        ]
        found.append(
            WorkingSet(
                window,
                sum(one[0] * share for one, share in zip(regions, used, strict=True)),
                sum(one[1] * share for one, share in zip(regions, used, strict=True)),
            )
        )
    return found


class _Areas:
    """The resident memory of processes by address; assumed to be spread evenly over each area."""

    def __init__(self, pids: list[int]) -> None:
        found = [
            (
                area.start,
                area.end,
                area.anonymous / (area.end - area.start),
                (area.rss - area.anonymous) / (area.end - area.start),
            )
            for pid in pids
            for area in areas(pid) or ()
            if area.rss
        ]
        self.areas = sorted(found)
        self.starts = [area[0] for area in self.areas]

    def within(self, start: int, end: int) -> tuple[float, float]:
        """Bytes of anonymous memory and of files in a range."""
        anonymous = file = 0.0
        at = max(bisect_right(self.starts, start) - 1, 0)
        while at < len(self.areas) and self.areas[at][0] < end:
            low, high, anonymous_share, file_share = self.areas[at]
            overlap = max(min(high, end) - max(low, start), 0)
            anonymous += overlap * anonymous_share
            file += overlap * file_share
            at += 1
        return anonymous, file


def _processor_time(kdamond: Path) -> float:
    """Processor seconds that the kernel's thread has used (``utime`` and ``stime``)."""
    try:
        fields = stat(int((kdamond / "pid").read_text()))
    except (OSError, ValueError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
