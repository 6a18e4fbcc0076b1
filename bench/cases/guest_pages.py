"""Speed of a guest by the host's page size for its memory, and time lost with the advised size.

The guest is a QEMU process, which emulates the processor. A control group limits its memory, with
swap on zram. QEMU requests huge pages (``madvise``), and the host allows one size.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, interval, nearfar, row, run

from cases.page_gain import kept_memory
from nearfar import workload
from nearfar.apply import counters
from nearfar.apply.measure import huge_pages, kib
from nearfar.apply.setting import BASE, SYSFS, applied, short, switches
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node

NAME = "guest-pages"
SUMMARY = "a guest's progress with little memory by the host's page size, against what is advised"

#: Workloads of page-size advice (paper 000), and their runs in a lap, about a second of processor
#: time.
WORKLOADS = {"game": 2, "pdf": 1}
#: Memory limits, as shares of QEMU's memory that a lap touches; the largest first.
PARTS = (0.8, 0.6)
#: Laps at each memory size. The first is not counted, because it starts with the resident set of
#: the previous size.
LAPS = 4
#: Page sizes besides 4 KiB.
SIZES = (16 << 10, 64 << 10, 256 << 10, 2 << 20)
#: Workloads, memory and page sizes of a quick run.
QUICK, QUICK_PARTS, QUICK_SIZES = ("game",), (0.8,), (64 << 10,)
#: Bytes of the guest's memory, and of swap.
MEMORY, SWAP = 320 << 20, 1 << 30
#: Time limit of all laps of a boot, seconds. A guest that thrashes exceeds it and is not repeated.
TIMEOUT = 60
#: Options of `nearfar advise`, by the name of the view.
ADVICE = {
    "paper": ("--view", "paper", "--machine", "zram", "--storage", "zram"),
    "machine": ("--view", "machine", "--machine", "zen4-vm", "--storage", "zram"),
}
#: Why a boot ended before its last lap.
KILLED, LATE, PANIC = "killed for lack of memory", "not done in time", "the guest panicked"
#: Attempts to boot a guest whose kernel panics.
TRIES = 4
#: Attempts of :func:`shrink` to lower a group's limit.
_TRIES = 20


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """For each workload, time laps at every page size and memory size, and get the advice."""
    cells: list[dict[str, Any]] = []
    try:
        where = kernel.controller(Path("/proc/mounts").read_text())
        sizes = [BASE, *(size for size in switches() if size in SIZES)]
        if not inputs.can_capture:
            raise kernel.Unavailable("there is no QEMU to capture with")
        for name in QUICK if quick else WORKLOADS:
            print(f"bench: {NAME}: {name}", file=sys.stderr)
            work = workload.load(name)
            missing = work.missing()
            if missing:
                inputs.remarks.append(f"{NAME}: {name} skipped: no {missing[0]}")
                continue
            parts = QUICK_PARTS if quick else PARTS
            with kernel.swapping(SWAP) as lists, kept_memory():
                tested = [BASE, *QUICK_SIZES] if quick else sizes
                found = measure(where, work, tested, parts, 1 if quick else rounds)
            for cell in found:
                cell["lists"] = lists
            advise(found, work, inputs.scratch, small=quick)
            cells += found
    except (kernel.Unavailable, NearfarError) as error:
        # Keep the cells measured so far.
        inputs.remarks.append(f"{NAME} {'ended early' if cells else 'skipped'}: {error}")
    inputs.cells += cells
    return rows(cells)


def measure(
    where: kernel.Controller,
    work: workload.Workload,
    sizes: Sequence[int],
    parts: Sequence[float],
    rounds: int,
) -> list[dict[str, Any]]:
    """A cell for each page size and memory size, with the counts of every lap."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        workload.make_inputs(work, folder)
        files: dict[str, Path | bytes] = {f"/work/{each.name}": each for each in folder.iterdir()}
        runs = WORKLOADS[work.name]
        job = shlex.join(work.command) + (f" <{work.stdin}" if work.stdin else "")
        files["/work/job"] = (f"{job} || exit\n" * runs).encode()
        files["/work/laps.sh"] = Path(__file__).parent.parent / "laps.sh"
        # One lap to warm up, and one in which accessed bits count the touched memory.
        free, ended = tried(where, work, files, BASE, [None, None])
        if ended:
            raise NearfarError(f"{work.name}: {ended} without a limit", 1)
        touched, kernel_bytes = free[1]["touched_bytes"], free[1]["kernel_bytes"]
        cells = {
            (size, part): {
                "workload": work.name,
                "page_bytes": size,
                "part": part,
                "touched_bytes": touched,
                "held_bytes": free[1]["held_bytes"],
                "limit_bytes": int(part * touched) + kernel_bytes,
                "free": free[1],
                "laps": [],
                "obtained": [],
                "ended": [],
            }
            for size in sizes
            for part in parts
        }
        for turn in range(rounds):
            for size in sizes if turn % 2 else reversed(sizes):
                own = [
                    cells[size, part] for part in parts if LATE not in cells[size, part]["ended"]
                ]
                limits = [cell["limit_bytes"] for cell in own for _ in range(LAPS)]
                if not own:
                    continue
                before = counters(size)["huge_allocations"] or 0
                laps, ended = tried(where, work, files, size, limits)
                obtained = (counters(size)["huge_allocations"] or 0) - before
                for number, cell in enumerate(own):
                    counted = laps[number * LAPS + 1 : (number + 1) * LAPS]
                    cell["laps"] += counted
                    cell["obtained"].append(obtained)
                    if len(counted) < LAPS - 1:
                        cell["ended"].append(ended)
                        break
    return list(cells.values())


def tried(
    where: kernel.Controller, work: workload.Workload, *more: Any
) -> tuple[list[dict[str, Any]], str]:
    """:func:`booted`, repeated if the guest's kernel panics, as it does in some boots."""
    for _ in range(TRIES):
        try:
            return booted(where, work, *more)
        except NearfarError as error:
            print(f"bench: {NAME}: {work.name}: {error}", file=sys.stderr)
    return [], PANIC


def booted(
    where: kernel.Controller,
    work: workload.Workload,
    files: dict[str, Path | bytes],
    page_bytes: int,
    limits: Sequence[int | None],
) -> tuple[list[dict[str, Any]], str]:
    """Boot a guest with one page size and run a lap under each of ``limits``.

    Returns the counts of each lap, and :data:`LATE` or :data:`KILLED` if it ended early.

    Raises:
        NearfarError: the boot ended early for another reason.
    """
    with (
        kernel.limited_group(where, f"nearfar-bench-{os.getpid()}", None) as group,
        applied(page_bytes, asking=True) as plan,
        huge_pages(plan.disable),
        kernel.polled(group),
    ):
        enter = f'echo $$ >{group / "cgroup.procs"}; exec taskset -c {kernel.core()} "$@"'
        laps = Laps(where, group, page_bytes, limits)
        guest = Guest(
            "x86_64",
            Hardware((Node(memory=MEMORY, cpus=1),)),
            packages=work.packages,
            parameters=("transparent_hugepage=never", "norandmaps"),
            start=("/bin/sh", "-c", enter, "sh"),
        )
        command = ["sh", "/work/laps.sh", str(len(limits))]
        try:
            done = guest.run(command, files=files, timeout=TIMEOUT, stream=laps.read)
        except NearfarError:
            if where.killed(group):
                return laps.found, KILLED
            if laps.late():
                return laps.found, LATE
            raise
    if done.exit_code != 0 or len(laps.found) != len(limits):
        raise BenchError(f"{work.name}: failed in the guest, lap {len(laps.found) + 1}")
    return laps.found, ""


class Laps:
    """The host's counts of a guest between the lines "begin" and "end" of each lap."""

    def __init__(
        self,
        where: kernel.Controller,
        group: Path,
        page_bytes: int,
        limits: Sequence[int | None],
    ) -> None:
        """``limits``: the group's limit in each lap, bytes; None to count touched memory."""
        self._where, self._group, self._limits = where, group, limits
        self._page_bytes = page_bytes
        self._text = ""
        self._began: float | None = None
        self._before: dict[str, float] = {}
        self.found: list[dict[str, Any]] = []

    def late(self) -> bool:
        """Whether the laps have exceeded :data:`TIMEOUT`."""
        return self._began is not None and time.monotonic() - self._began > TIMEOUT

    def read(self, _stream: str, written: bytes) -> None:
        """Handle output of the guest."""
        *lines, self._text = (self._text + written.decode()).split("\n")
        for line in lines:
            if line == "begin":
                self._begin()
            elif line == "end":
                self._end()

    def _begin(self) -> None:
        process = self._process()
        limit = self._limits[len(self.found)]
        # A second earlier, because the guest's time limit starts before its first lap.
        self._began = self._began or time.monotonic() - 1
        os.kill(process, signal.SIGSTOP)
        try:
            if limit is None:
                Path(f"/proc/{process}/clear_refs").write_text("1")
            else:
                shrink(self._group / self._where.limit, limit)
            self._before = counts(process, self._page_bytes)
        finally:
            os.kill(process, signal.SIGCONT)

    def _end(self) -> None:
        process = self._process()
        after = counts(process, self._page_bytes)
        stat = kernel.read_statistics(self._group)
        lap: dict[str, Any] = {name: after[name] - self._before[name] for name in after}
        lap["kernel_bytes"] = self._where.kernel_bytes(self._group, stat)
        lap["touched_bytes"] = kib(process, "smaps_rollup", "Referenced:") << 10
        lap["held_bytes"] = kib(process, "smaps_rollup", "Anonymous:") << 10
        if not lap["touched_bytes"]:
            raise BenchError(f"process {process} has ended within a lap")
        self.found.append(lap)

    def _process(self) -> int:
        return int((self._group / "cgroup.procs").read_text().split()[0])


def shrink(file: Path, limit: int) -> None:
    """Set a limit below the group's usage; retry if the kernel cannot reclaim enough at once."""
    for attempt in range(_TRIES):
        try:
            file.write_text(str(limit))
            return
        except OSError:
            if attempt == _TRIES - 1:
                raise
            time.sleep(0.1)


def counts(process: int, page_bytes: int) -> dict[str, float]:
    """Faults and time of a process with all its threads so far, and the machine's swap counts."""
    # The first word after the name in parentheses is field 3 of proc_pid_stat(5).
    words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    minor, major, user, system = (int(words[place]) for place in (7, 9, 11, 12))
    tick = os.sysconf("SC_CLK_TCK")
    return {
        "minor": minor,
        "major": major,
        "user_seconds": user / tick,
        "system_seconds": system / tick,
        "seconds": time.monotonic(),
        **swapped(page_bytes),
    }


def swapped(page_bytes: int) -> dict[str, int]:
    """Swap counts of this machine so far; only the guest swaps.

    ``read_pages`` counts 4 KiB pages swapped in. The others count pages of ``page_bytes``: swapped
    out whole, split before swap-out, swapped in whole.
    """
    lines = (line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    machine = {name: int(count) for name, count in lines}
    found = {"read_pages": machine["pswpin"] + machine.get("swpin_zero", 0)}
    folder = SYSFS / f"hugepages-{page_bytes >> 10}kB" / "stats"
    for name in ("swpout", "swpout_fallback", "swpin"):
        found[name] = int((folder / name).read_text()) if folder.exists() else 0
    return found


def spent(lap: dict[str, Any]) -> float:
    """Processor seconds of a lap: with swap on zram, no time passes waiting for a device."""
    return float(lap["user_seconds"] + lap["system_seconds"])


def advise(
    cells: list[dict[str, Any]], work: workload.Workload, scratch: Path, *, small: bool
) -> None:
    """Capture the workload; add the advised page size and predicted times to its cells."""
    folder = scratch / f"advised-{work.name}"
    folder.mkdir()
    trace = workload.capture(work, folder, small=small).trace
    sizes = ",".join(str(size) for size in dict.fromkeys(cell["page_bytes"] for cell in cells))
    parts = dict.fromkeys(cell["part"] for cell in cells)
    memory = ",".join(f"{100 * part:g}%" for part in parts)
    for cell in cells:
        cell["advised"], cell["predicted_ns"] = {}, {}
    for view, options in ADVICE.items():
        more = ("--memory", memory, "--page-sizes", sizes, "--format", "json")
        found = run(nearfar("advise", trace, *options, *more)).json()["rows"]
        for cell, one in ((cell, one) for cell in cells for one in found):
            if abs(one["memory_fraction"] - cell["part"]) < 1e-9:
                cell["advised"][view] = one["settable_page_bytes"]
                times = {each["page_bytes"]: each["predicted_ns"] for each in one["curve"]}
                cell["predicted_ns"][view] = times[cell["page_bytes"]]
    shutil.rmtree(folder)


def taken(cell: dict[str, Any]) -> list[float]:
    """Processor seconds of each lap."""
    return [spent(lap) for lap in cell["laps"]]


def settings(cells: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Cells grouped by workload and memory size, each group sorted by page size."""
    found: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for cell in cells:
        found.setdefault((cell["workload"], cell["part"]), []).append(cell)
    return [sorted(own, key=lambda cell: int(cell["page_bytes"])) for own in found.values()]


def best(own: list[dict[str, Any]]) -> dict[str, Any]:
    """The cell with the least median processor time of a lap."""
    own = [cell for cell in own if cell["laps"]]
    return min(own, key=lambda cell: statistics.median(taken(cell)))


def as_good(own: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best cell, and cells whose interval overlaps its interval."""
    high = interval(taken(best(own)))[1]
    return [cell for cell in own if cell["laps"] and interval(taken(cell))[0] <= high]


def chosen(own: list[dict[str, Any]], view: str) -> dict[str, Any]:
    """The cell of the page size that ``view`` advises."""
    return next(cell for cell in own if cell["page_bytes"] == cell["advised"][view])


def lost(own: list[dict[str, Any]], cell: dict[str, Any]) -> float:
    """Percent by which the median lap exceeds that of the best page size."""
    least = statistics.median(taken(best(own)))
    return 100 * (statistics.median(taken(cell)) / least - 1)


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """Lap times of each cell, and the time lost by following the advice at each memory size."""
    made = []
    for cell in (cell for cell in cells if cell["laps"]):
        where = f"{cell['workload']}, {cell['part']:.0%} of the memory, {short(cell['page_bytes'])}"
        note = f"major faults: {spread([lap['major'] for lap in cell['laps']])}"
        made.append(row(NAME, f"lap of {where}", taken(cell), "s", note=note))
    for own in settings(cells):
        if not own[0]["laps"]:
            continue
        where = f"{own[0]['workload']}, {own[0]['part']:.0%} of the memory"
        for name, cell in (
            *((f"advice by --view {view}", chosen(own, view)) for view in ADVICE),
            ("4 KiB", own[0]),
        ):
            if not cell["laps"]:
                continue
            note = f"{short(cell['page_bytes'])}; best {short(best(own)['page_bytes'])}"
            made.append(row(NAME, f"longer than best, {where}, {name}", [lost(own, cell)], "%",
                            note=note))  # fmt: skip
    return made


def spread(counts: Sequence[float]) -> str:
    """The median of counts, and their range."""
    return f"{statistics.median(counts):,.0f} ({min(counts):,.0f} to {max(counts):,.0f})"
