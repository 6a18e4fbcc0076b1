"""Runs programs under a memory limit with swap on zram, and reads the kernel's counters.

All changes of the machine (a zram device, swap on it, settings, a control group) are undone when
the block ends, or by the next run if this one is killed. Needs root.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from undo import Undo, clean, undoing

PAGE = 4096
_CONTROL = Path("/sys/class/zram-control")
_LRU_GEN = Path("/sys/kernel/mm/lru_gen/enabled")
_PAGE_CLUSTER = Path("/proc/sys/vm/page-cluster")
_SWAPPINESS = Path("/proc/sys/vm/swappiness")
#: Makes the kernel reclaim anonymous memory only.
SWAPPINESS = "200"
#: Swappiness values to try in turn: kernels before 5.8 accept at most 100.
_ANONYMOUS_ONLY = (SWAPPINESS, "100")
#: Environment of the programs, here and when they are captured.
ENVIRONMENT = {
    "LC_ALL": "C",
    "PATH": "/usr/bin:/bin",
    "PYTHONHASHSEED": "0",
    "OPENBLAS_NUM_THREADS": "1",
}
#: The kernel balances its LRU lists by statistics of the group, which it updates every two seconds
#: or when they are read. Read with this period, in seconds, they are practically exact.
_POLL_SECONDS = 0.001
_PR_SET_THP_DISABLE = 41
_ADDR_NO_RANDOMIZE = 0x0040000


class Unavailable(Exception):
    """This machine or user cannot run the case; the text says why."""


@dataclass(frozen=True)
class Finished:
    """Measurements of one run.

    Attributes:
        exit_code: of the program, negative for a signal.
        major: major faults: pages read back from swap or from a file.
        anonymous_pages: peak anonymous pages of the group; 0 if not polled.
        kernel_bytes: peak kernel memory charged to the group, mostly page tables; 0 if not polled.
        kernel_usual_bytes: median of the kernel memory charged to the group; 0 if not polled.
        file_bytes: peak page cache charged to the group; if not polled, that at the end.
        killed: processes that the OOM killer ended.
        updated: whether a swapped-in page was activated, which happens only if the kernel updated
            the statistics during the run.
        processor_seconds: user and system time of the program.
    """

    exit_code: int
    major: int
    anonymous_pages: int
    kernel_bytes: int
    kernel_usual_bytes: int
    file_bytes: int
    killed: int
    updated: bool
    processor_seconds: float


@dataclass(frozen=True)
class Controller:
    """The memory controller: the folder of its control groups, and version 1 or 2."""

    root: Path
    version: int

    @property
    def limit(self) -> str:
        """Name of the file with the memory limit, bytes."""
        return "memory.max" if self.version == 2 else "memory.limit_in_bytes"

    def killed(self, group: Path) -> int:
        """Processes of ``group`` that the OOM killer ended."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        return _numbers(group / name)["oom_kill"]

    def kernel_bytes(self, group: Path, stat: dict[str, int]) -> int:
        """Kernel memory charged to ``group``; ``stat`` is its :func:`read_statistics`."""
        if self.version == 1:
            return int(_read(group / "memory.kmem.usage_in_bytes"))
        parts = ("kernel_stack", "pagetables", "slab")
        return stat["kernel"] if "kernel" in stat else sum(stat.get(part, 0) for part in parts)


def controller(mounts: str) -> Controller:
    """Find the memory controller in the text of ``/proc/mounts``: version 1, or else 2.

    Raises:
        Unavailable: no memory controller is mounted.
    """
    lines = [line.split() for line in mounts.splitlines()]
    for words in lines:
        if words[2] == "cgroup" and "memory" in words[3].split(","):
            return Controller(Path(words[1]), 1)
    for words in lines:
        if words[2] == "cgroup2":
            root = Path(words[1])
            with _explained(f"{root}: cannot be read"):
                if "memory" in _read(root / "cgroup.controllers").split():
                    return Controller(root, 2)
    raise Unavailable("this kernel has no memory control group mounted")


@contextmanager
def swapping(swap_bytes: int) -> Iterator[str]:
    """Swap on a new zram device for the block, without read-ahead and with classic LRU lists.

    Yields a description of the lists.

    Raises:
        Unavailable: not root, or the kernel has no zram.
    """
    if os.geteuid() != 0:
        raise Unavailable("it needs root")
    if not _CONTROL.exists():
        subprocess.run(["modprobe", "zram"], capture_output=True, check=False)
    if not _CONTROL.exists():
        raise Unavailable("this kernel has no zram (CONFIG_ZRAM)")
    clean()
    with undoing("swap") as undo:
        number = _read(_CONTROL / "hot_add").strip()
        undo.later("write", _CONTROL / "hot_remove", number)
        block = Path("/sys/block") / f"zram{number}"
        device = f"/dev/zram{number}"
        with _explained(f"{device}: cannot be set up"):
            _write(block / "disksize", str(swap_bytes))
            undo.later("write", block / "reset", "1")
            if not Path(device).exists():
                major, minor = _read(block / "dev").split(":")
                undo.later("unlink", device)
                os.mknod(device, 0o060600, os.makedev(int(major), int(minor)))
            _command("mkswap", device)
            _command("swapon", "--priority", "100", device)
            undo.later("command", "swapoff", device)
            _set(undo, _PAGE_CLUSTER, "0")
            _set(undo, _SWAPPINESS, *_ANONYMOUS_ONLY)
            if not _LRU_GEN.exists():
                lists = "classic LRU (this kernel has no multi-generational LRU)"
            elif int(_read(_LRU_GEN), 0) & 1 == 0:
                lists = "classic LRU (multi-generational LRU is off)"
            else:
                _set(undo, _LRU_GEN, "0")
                lists = "classic LRU (multi-generational LRU switched off for it)"
        yield lists


def run_limited(
    where: Controller, command: Sequence[str], limit: int | None, name: str, *, poll: bool
) -> Finished:
    """Run a program to its end in a new group, pinned to one core, without huge pages.

    Args:
        where: the memory controller.
        command: program (full path) and arguments; its output is discarded.
        limit: of the memory charged to the group, bytes; None for no limit.
        name: of the group, which must not exist.
        poll: read the group's statistics every :data:`_POLL_SECONDS`, which updates them.

    Raises:
        Unavailable: the group cannot be made.
    """
    with limited_group(where, name, limit) as group, _prioritized():
        return _run_watched(where, group, command, poll=poll)


@contextmanager
def limited_group(where: Controller, name: str, limit: int | None) -> Iterator[Path]:
    """A new group that reclaims anonymous memory only; the end of the block kills its processes.

    Args:
        where: the memory controller.
        name: of the group, which must not exist.
        limit: of the memory charged to the group, bytes; None for no limit.

    Raises:
        Unavailable: the group cannot be made.
    """
    with undoing("group") as undo:
        group = where.root / name
        with _explained(f"{group}: cannot be made"):
            if where.version == 2:
                control = where.root / "cgroup.subtree_control"
                if "memory" not in _read(control).split():
                    undo.later("write", control, "-memory")
                    _write(control, "+memory")
            undo.later("group", group)
            group.mkdir()
            if where.version == 1:
                _write(group / "memory.swappiness", *_ANONYMOUS_ONLY)
            if limit is not None:
                _write(group / where.limit, str(limit))
        yield group


@contextmanager
def _prioritized() -> Iterator[None]:
    """The highest priority, so that other processes do not delay updates of the statistics."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def _run_watched(where: Controller, group: Path, command: Sequence[str], *, poll: bool) -> Finished:
    libc = ctypes.CDLL(None)

    def enter_group() -> None:
        _write(group / "cgroup.procs", str(os.getpid()))
        os.sched_setaffinity(0, {core()})
        libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
        libc.personality(_ADDR_NO_RANDOMIZE)

    activated = _activated()
    child = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        preexec_fn=enter_group,
    )
    anonymous = file = 0
    kernel = [0]
    try:
        while True:
            found, status, usage = os.wait4(child.pid, os.WNOHANG if poll else 0)
            stat = read_statistics(group)
            if found:
                child.returncode = os.waitstatus_to_exitcode(status)
                file = max(file, stat["active_file"] + stat["inactive_file"])
                killed = where.killed(group)
                major = usage.ru_majflt
                updated = _activated() != activated
                usual = int(statistics.median(kernel))
                return Finished(
                    child.returncode,
                    major,
                    anonymous,
                    max(kernel),
                    usual,
                    file,
                    killed,
                    updated,
                    usage.ru_utime + usage.ru_stime,
                )
            anonymous = max(anonymous, (stat["active_anon"] + stat["inactive_anon"]) // PAGE)
            kernel.append(where.kernel_bytes(group, stat))
            file = max(file, stat["active_file"] + stat["inactive_file"])
            time.sleep(_POLL_SECONDS)
    finally:
        if child.returncode is None:
            child.kill()
            child.wait()


def core() -> int:
    """The core that programs are pinned to."""
    return max(os.sched_getaffinity(0))


@contextmanager
def polled(group: Path) -> Iterator[None]:
    """Update the statistics of ``group`` every :data:`_POLL_SECONDS` during the block.

    Otherwise the kernel may kill a process whose pages are all active, although there is swap.
    """
    ended = threading.Event()

    def poll() -> None:
        # Keep this thread off the core of the program, if there is another.
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {core()} or {core()})
        while not ended.wait(_POLL_SECONDS):
            read_statistics(group)

    poller = threading.Thread(target=poll)
    with _prioritized():
        poller.start()
        try:
            yield
        finally:
            ended.set()
            poller.join()


def read_statistics(group: Path) -> dict[str, int]:
    """The numbers of ``memory.stat``; reading them makes the kernel update them."""
    return _numbers(group / "memory.stat")


def _activated() -> int:
    """Anonymous pages that were activated at swap-in, of the whole machine."""
    return _numbers(Path("/proc/vmstat"))["workingset_activate_anon"]


def _numbers(path: Path) -> dict[str, int]:
    """Parse a file whose lines are a name and a number."""
    lines = (line.split() for line in _read(path).splitlines())
    return {name: int(value) for name, value in lines}


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii")


def _write(path: Path, *values: str) -> None:
    """Write the first of ``values`` that the kernel accepts."""
    for value in values:
        try:
            path.write_text(value, encoding="ascii")
            return
        except OSError:
            if value == values[-1]:
                raise


def _set(undo: Undo, path: Path, *values: str) -> None:
    """Change a setting; ``undo`` restores it."""
    undo.later("write", path, _read(path).strip())
    _write(path, *values)


def _command(*words: str) -> None:
    """Run a system tool.

    Raises:
        Unavailable: it is not installed or fails.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unavailable(f"{words[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise Unavailable(f"{words[0]}: {done.stderr.strip() or done.returncode}")


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"{what} ({error.strerror})") from None
