"""Runs a command and measures its faults, memory and time."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from nearfar.errors import NearfarError
from nearfar.processes import handling, process_tree

_PR_SET_THP_DISABLE, _PR_GET_THP_DISABLE = 41, 42
#: Seconds between samples of the command's own peak RSS, which take no locks.
_PAUSE = 0.002
#: Seconds between samples of the memory of its process tree: first, maximum, growth factor.
_FIRST_PAUSE, _MAX_PAUSE, _GROWTH = 0.001, 0.1, 1.2
#: Minimum pause as a multiple of a sample's duration: page faults wait for the sample's locks.
_MIN_PAUSE = 20


@dataclass(frozen=True)
class Measured:
    """Measurements of one run.

    Attributes:
        exit_code: of the command; 128 + N if signal N ended it.
        interrupted: whether this process got a signal that would end it.
        seconds: wall time.
        user_seconds: user CPU time of the command and the children it waited for.
        system_seconds: their system CPU time.
        minor_faults: their faults without I/O.
        major_faults: their faults that waited for storage or swap.
        peak_rss_bytes: peak resident set of the command or its largest child; None if it ended
            before the first sample and its peak is not above that of this process.
        anon_huge_bytes: largest sampled sum of ``AnonHugePages`` (2 MiB pages only); None
            without a sample.
    """

    exit_code: int
    interrupted: bool
    seconds: float
    user_seconds: float
    system_seconds: float
    minor_faults: int
    major_faults: int
    peak_rss_bytes: int | None
    anon_huge_bytes: int | None


def run(
    command: Sequence[str],
    *,
    disable: bool | None = None,
    sample: bool = True,
    stdin: IO[bytes] | int | None = None,
    stdout: IO[bytes] | int | None = None,
) -> Measured:
    """Run ``command`` to its end and measure it.

    Args:
        command: program and arguments.
        disable: disable huge pages for the command; None inherits the setting of this process.
        sample: sample its memory while it runs, which slows its faults by a few percent. Otherwise
            ``anon_huge_bytes`` is None, and ``peak_rss_bytes`` may be.
        stdin: as for ``subprocess.Popen``.
        stdout: as for ``subprocess.Popen``.

    Raises:
        NearfarError: it cannot be started.
    """
    with _forwarded_signals() as forwarded:
        start = time.monotonic()
        with huge_pages(disable=disable):
            try:
                child = subprocess.Popen(command, stdin=stdin, stdout=stdout)
            except OSError as error:
                raise NearfarError(f"{command[0]}: cannot be run: {error.strerror}") from None
        forwarded.child = child
        huge: int | None = None
        rss, pause, due = 0, _FIRST_PAUSE, start
        unreaped = os.WEXITED | os.WNOWAIT
        if not sample:
            os.waitid(os.P_PID, child.pid, unreaped)
        while os.waitid(os.P_PID, child.pid, unreaped | os.WNOHANG) is None:
            if (now := time.monotonic()) < due:
                rss = max(rss, kib(child.pid, "status", "VmHWM:"))
            else:
                tree = process_tree(child.pid)
                in_use = sum(kib(pid, "smaps_rollup", "AnonHugePages:") for pid in tree)
                peaks = [kib(pid, "status", "VmHWM:") for pid in tree]
                if any(peaks):  # not all have ended already
                    huge = max(huge or 0, in_use)
                rss = max(rss, *peaks)
                ended_at = time.monotonic()
                due = ended_at + max(pause, _MIN_PAUSE * (ended_at - now))
                pause = min(_GROWTH * pause, _MAX_PAUSE)
            time.sleep(_PAUSE)
        seconds = time.monotonic() - start
        minor, major = _faults(child.pid)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    code = child.returncode
    # ru_maxrss starts with the peak of this process, because exec keeps it (exec_mmap in
    # fs/exec.c): only a larger value is the command's. VmHWM may miss the end of the run.
    if usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        rss = usage.ru_maxrss
    return Measured(
        exit_code=code if code >= 0 else 128 - code,
        interrupted=forwarded.received,
        seconds=seconds,
        user_seconds=usage.ru_utime,
        system_seconds=usage.ru_stime,
        minor_faults=minor,
        major_faults=major,
        peak_rss_bytes=rss * 1024 or None,
        anon_huge_bytes=None if huge is None else huge * 1024,
    )


@contextmanager
def huge_pages(disable: bool | None) -> Iterator[None]:
    """Set ``PR_SET_THP_DISABLE`` for this process, which a child inherits.

    If the child set it before exec, faults of the forked Python would count as the command's.
    """
    libc = ctypes.CDLL(None)
    before = libc.prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0)
    if disable is not None:
        libc.prctl(_PR_SET_THP_DISABLE, int(disable), 0, 0, 0)
    try:
        yield
    finally:
        if disable is not None:
            # Bit 1 exempts mappings with MADV_HUGEPAGE (Linux 6.18).
            libc.prctl(_PR_SET_THP_DISABLE, before & 1, before & 2, 0, 0)


@dataclass
class _Forwarded:
    child: subprocess.Popen[bytes] | None = None
    received: bool = False


@contextmanager
def _forwarded_signals() -> Iterator[_Forwarded]:
    """Forward to the command the signals that would end this process."""
    forwarded = _Forwarded()

    def forward(number: int, _frame: FrameType | None) -> None:
        forwarded.received = True
        # The terminal sends Ctrl-C to the command itself.
        typed = number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty()
        if forwarded.child is not None and not typed:
            forwarded.child.send_signal(number)

    with handling((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), forward):
        yield forwarded


def _faults(pid: int) -> tuple[int, int]:
    """Minor and major faults of an ended process and its children, from ``/proc/PID/stat``."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    # words[0] is the third field of proc(5), the state; minflt is the tenth.
    minor, of_children, major, major_of_children = (int(word) for word in words[7:11])
    return minor + of_children, major + major_of_children


def kib(pid: int, file: str, label: str) -> int:
    """A value of ``/proc/PID/FILE``, in KiB; 0 if the process has ended or is not ours."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8").splitlines():
            if line.startswith(label):
                return int(line.split()[1])
    return 0
