"""DAMON: the kernel samples regions of virtual memory and merges those that are used alike.

Starts a monitor of the target's processes (``/sys/kernel/mm/damon/admin``, operations ``fvaddr`` on
the areas that have memory) with the kernel's default intervals, 5 ms samples and 100 ms
aggregation, and reads for each region how often it was used and for how long it has not been
(Documentation/admin-guide/mm/damon/usage.rst). If the kernel's thread uses more than half of the
budget at first, the intervals grow by as much; the other half is for looks at the regions. With
operations ``vaddr``, the unused addresses between areas take most regions. It sees memory of
virtual machines, and its cost does not grow with memory.

Do not use: for small programs, as a region counts as a whole. If somebody else uses DAMON, it is
left alone. Needs root.
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
from nearfar.watch.target import PROC, Target

SUMMARY: Final = "DAMON, which samples regions"
ERROR: Final = (0.6, 0.1)

ADMIN: Final = Path("/sys/kernel/mm/damon/admin/kdamonds")
#: Parts of the kernel that let nobody else use DAMON (mm/damon).
EXCLUSIVE: Final = ("damon_reclaim", "damon_lru_sort", "damon_stat")
#: Seconds of a sample at first, and samples of an aggregation.
SAMPLE: Final = 0.005
SAMPLES: Final = 20
#: Least seconds between looks at the regions, and seconds that show what the kernel's thread costs.
EVERY: Final = 1.0
TRIAL: Final = 2.0
#: At least and at most as many regions: a region is at most this part of the memory.
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
                return "this kernel's DAMON watches no virtual memory (CONFIG_DAMON_VADDR)"
    except OSError as error:
        return f"DAMON refuses: {error.strerror}"
    return None


def watch(target: Target, seconds: float, share: float, progress: Progress) -> Watched:
    """Observe the target; see :class:`nearfar.watch.methods.Method`."""
    found = Watched()
    started, cost = time.monotonic(), time.thread_time()
    with _created() as context:
        kernel, state = context.parent.parent, context.parent.parent / "state"
        _set_up(context, target.pids(), SAMPLE)
        state.write_text("on")
        time.sleep(min(TRIAL, seconds / 4))
        tried = _processor_time(kernel)
        sample = slower(SAMPLE, tried / (time.monotonic() - started), share)
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
            tried = 0.0  # the thread goes on
        begun, look = time.monotonic(), 0.0
        while time.monotonic() - started < seconds:
            left = started + seconds - time.monotonic()
            time.sleep(max(EVERY, min(2 * look / share, left)))
            before = time.thread_time()
            pids = target.pids()
            memory = read(pids)
            if memory is None:
                found.ended = True
                break
            try:
                state.write_text("update_schemes_tried_regions")
            except OSError:
                found.ended = True  # it ends with its processes
                break
            longest = max(time.monotonic() - begun, 2 * sample * SAMPLES)
            # A late thread has shown no region yet.
            if sets := _working_sets(context, pids, longest, sample):
                found.cycles.append(sets)
            found.least = min(found.least, memory.resident)
            found.most = max(found.most, memory.resident)
            found.last = memory
            look = time.thread_time() - before
            found.cost = time.thread_time() - cost + tried + _processor_time(kernel)
            found.seconds = time.monotonic() - started
            progress(found)
    found.seconds = time.monotonic() - started
    if not found.cycles:
        why = "ended before it could be watched" if found.ended else "DAMON shows no region"
        raise NearfarError(f"{target.name}: {why}; give more time (--for)")
    # Earlier looks know only of shorter windows.
    found.cycles = found.cycles[len(found.cycles) // 2 :]
    return found


def slower(sample: float, used: float, share: float) -> float:
    """Seconds of a sample with which the kernel's thread uses half of ``share``.

    With samples of ``sample`` seconds it uses ``used`` of a processor.
    """
    return sample * max(used / (share / 2), 1.0)


@contextmanager
def _created() -> Iterator[Path]:
    """A monitor, until the block ends or this process, even by SIGKILL."""
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

    Of a region that was used in k of the samples of an aggregation, a share p = k / samples is
    taken to be used in one sample, and 1 - (1 - p)^n in n; of a region that was not used, all at
    its last use, unless that was before the monitor began.
    """
    memory = _Areas(pids)
    regions: list[tuple[float, float, float, float]] = []
    for folder in (context / "schemes/0/tried_regions").glob("[0-9]*"):
        start, end, count, age = (
            int((folder / name).read_text()) for name in ("start", "end", "nr_accesses", "age")
        )
        anonymous, file = memory.within(start, end)
        regions.append((anonymous, file, count / SAMPLES, age * SAMPLES * sample))
    began = 0.9 * max((idle for *_, idle in regions), default=0.0)
    found = []
    for window in windows(longest) if regions else ():
        used = [
            1 - (1 - min(part, 1.0)) ** (window / sample)
            if part
            else float(idle <= window and idle < began)
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
    """Where resident memory lies: bytes of each area are taken to be spread evenly over it."""

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
            low, high, one, other = self.areas[at]
            overlap = max(min(high, end) - max(low, start), 0)
            anonymous, file = anonymous + overlap * one, file + overlap * other
            at += 1
        return anonymous, file


def _processor_time(kernel: Path) -> float:
    """Seconds that the kernel's thread has used."""
    try:
        pid = (kernel / "pid").read_text().strip()
        fields = (PROC / pid / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
