"""Run a command and measure what the kernel says of it: faults, memory, time."""

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

_PR_SET_THP_DISABLE, _PR_GET_THP_DISABLE = 41, 42
#: Seconds between looks at the memory of the command: at first, at most, and the growth between.
_FIRST, _LAST, _GROWTH = 0.001, 0.1, 1.2
#: Pauses for each look, in what it takes: faults wait for its locks, those of small pages longest.
_REST = 20


@dataclass(frozen=True)
class Measured:
    """What one run measured.

    Attributes:
        exit_code: of the command; 128 + N when signal N ended it.
        interrupted: whether this process was asked to end meanwhile.
        seconds: from start to end.
        user_seconds: CPU time of the command and its children in the program.
        system_seconds: the same in the kernel.
        minor_faults: faults that needed no reading, of the command and the children it waited for.
        major_faults: faults that waited for storage or swap.
        peak_rss_bytes: most memory of the command or the largest of its children; None when it
            ended before it could be looked at.
        anon_huge_bytes: most ``AnonHugePages`` seen in all of them together (2 MiB pages; smaller
            ones do not count there); None as above.
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
    look: bool = True,
    stdin: IO[bytes] | int | None = None,
    stdout: IO[bytes] | int | None = None,
) -> Measured:
    """Run ``command`` to its end and measure it.

    Args:
        command: program and arguments.
        disable: whether the command has no huge pages; None leaves that as it is.
        look: at its memory while it runs, which costs it a few percent of its faults. Without,
            ``anon_huge_bytes`` is None, and so may be ``peak_rss_bytes``.
        stdin: as for ``subprocess.Popen``.
        stdout: as for ``subprocess.Popen``.

    Raises:
        NearfarError: it cannot be started.
    """
    with _pass_signals_on() as passed:
        began = time.monotonic()
        with huge_pages(disable):
            try:
                child = subprocess.Popen(command, stdin=stdin, stdout=stdout)
            except OSError as error:
                raise NearfarError(f"{command[0]}: cannot be run: {error.strerror}") from None
        passed.child = child
        huge, rss, pause = 0, 0, _FIRST
        ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if not look:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        while os.waitid(os.P_PID, child.pid, ended) is None:
            began_look = time.monotonic()
            family = _family(child.pid)
            huge = max(huge, sum(_kib(pid, "smaps_rollup", "AnonHugePages:") for pid in family))
            rss = max(rss, *(_kib(pid, "status", "VmHWM:") for pid in family))
            took = time.monotonic() - began_look
            time.sleep(max(pause, _REST * took))
            pause = min(_GROWTH * pause, _LAST)
        seconds = time.monotonic() - began
        minor, major = _faults(child.pid)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    code = child.returncode
    # ru_maxrss begins with the memory of this process, which exec replaced by the command's
    # (exec_mmap in fs/exec.c): only more than that is its own. VmHWM may miss the last moment.
    if usage.ru_maxrss > resource.getrusage(resource.RUSAGE_SELF).ru_maxrss:
        rss = usage.ru_maxrss
    return Measured(
        exit_code=code if code >= 0 else 128 - code,
        interrupted=passed.any,
        seconds=seconds,
        user_seconds=usage.ru_utime,
        system_seconds=usage.ru_stime,
        minor_faults=minor,
        major_faults=major,
        peak_rss_bytes=rss * 1024 or None,
        anon_huge_bytes=huge * 1024 if look and rss else None,
    )


@contextmanager
def huge_pages(disable: bool | None) -> Iterator[None]:
    """Set for this process what a child inherits, so that nothing runs between fork and exec.

    The faults of a copied Python would be counted as the command's otherwise.
    """
    libc = ctypes.CDLL(None)
    was = libc.prctl(_PR_GET_THP_DISABLE, 0, 0, 0, 0)
    if disable is not None:
        libc.prctl(_PR_SET_THP_DISABLE, int(disable), 0, 0, 0)
    try:
        yield
    finally:
        if disable is not None:
            # Bit 1: only what asks for them has them (Linux 6.18).
            libc.prctl(_PR_SET_THP_DISABLE, was & 1, was & 2, 0, 0)


@dataclass
class _Passed:
    child: subprocess.Popen[bytes] | None = None
    any: bool = False


@contextmanager
def _pass_signals_on() -> Iterator[_Passed]:
    """While it lasts, signals that would end this process go to the command, which decides."""
    passed = _Passed()

    def handle(number: int, _frame: FrameType | None) -> None:
        passed.any = True
        # What is typed at a terminal reaches the command without us.
        typed = number == signal.SIGINT and sys.stdin is not None and sys.stdin.isatty()
        if passed.child is not None and not typed:
            passed.child.send_signal(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    old = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield passed
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _faults(pid: int) -> tuple[int, int]:
    """Minor and major faults of a process that has ended and its children, from its ``stat``."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    # proc(5) counts fields from 1, and the state, our first, is the third: minflt is the tenth.
    minor, of_children, major, major_of_children = (int(word) for word in words[7:11])
    return minor + of_children, major + major_of_children


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        with suppress(OSError):
            for task in Path(f"/proc/{parent}/task").iterdir():
                found += [int(word) for word in (task / "children").read_text().split()]
    return found


def _kib(pid: int, file: str, label: str) -> int:
    """A line of ``/proc/PID/FILE``, in KiB; 0 when the process is gone or not ours."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/{file}").read_text(encoding="utf-8").splitlines():
            if line.startswith(label):
                return int(line.split()[1])
    return 0
