"""Run commands in forks of a process that has imported nearfar, and kill them (:mod:`chaos`)."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from forks import HANG
from nearfar.processes import process_tree


class Broken(AssertionError):
    """A check has failed."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit code (negative: signal), standard error, duration."""

    code: int
    said: str
    seconds: float


def run(
    words: list[str],
    folder: Path,
    after: float | None = None,
    number: signal.Signals = signal.SIGKILL,
    limit: int | None = None,
    around: AbstractContextManager[None] | None = None,
) -> Ended:
    """Run a command in a fork; after ``after`` seconds, send it the signal ``number``.

    ``limit``: largest file in bytes; ``around``: a context for the command, entered in the fork.
    """
    said = folder.parent / "said"
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        command(words, folder, said, limit, around or contextlib.nullcontext())
    if after is not None:
        _wait(pid, began + after)
        running = children(pid)
        os.kill(pid, number)
    status = os.waitpid(pid, 0)[1]
    seconds = time.monotonic() - began
    if after is not None:
        end = time.monotonic() + HANG
        while left := [one for one in running if alive(one)]:
            if time.monotonic() > end:
                raise Broken(f"processes run on: {left}")
            time.sleep(0.01)
    return Ended(os.waitstatus_to_exitcode(status), said.read_text(errors="replace"), seconds)


def command(
    words: list[str],
    folder: Path,
    said: Path,
    limit: int | None,
    around: AbstractContextManager[None],
) -> None:
    """Run the command in this process, a fork; never returns."""
    code = 70  # stays only if main() returns, which it must not
    try:
        os.setpgid(0, 0)
        os.chdir(folder)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        from nearfar.cli import main

        sys.argv = ["nearfar", *words]
        with around:
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001  as the interpreter would
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, until: float) -> None:
    """Sleep until a time, or until the process ends."""
    while (left := until - time.monotonic()) > 0:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(min(left, 0.005))


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    return process_tree(pid)[1:]


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(") ", 1)[1][0] not in "ZX"
