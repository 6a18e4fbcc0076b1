"""Child processes that end with this one, and handlers of signals that end it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, TypedDict, Unpack


class Options(TypedDict, total=False):
    """Options of :class:`subprocess.Popen`."""

    stdin: IO[bytes] | int | None
    stdout: IO[bytes] | int | None
    stderr: IO[bytes] | int | None
    cwd: str | Path | None
    env: Mapping[str, str] | None
    pass_fds: Sequence[int]


@contextmanager
def running(
    command: Sequence[str | os.PathLike[str]], **options: Unpack[Options]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that ends with the block, or when this process ends, even by SIGKILL.

    Signals that end this process are deferred until the program has started.

    Args:
        command: the program and its arguments.
        options: of ``Popen``.
    """
    child = None
    try:
        with _deferred():
            child = subprocess.Popen(command, preexec_fn=_end_with_parent, **options)
        yield child
    finally:
        if child is not None:
            _end(child)


@contextmanager
def _deferred() -> Iterator[None]:
    """Defer signals that end this process to the end of the block."""
    received: list[int] = []
    ours = (signal.SIGINT, signal.SIGTERM)
    # Only a handler in Python can raise while ``Popen`` runs, which would lose the child.
    numbers = [number for number in ours if callable(signal.getsignal(number))]
    try:
        with handling(numbers, lambda number, _frame: received.append(number)):
            yield
    finally:
        for number in received:
            signal.raise_signal(number)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def children(pid: int) -> list[int]:
    """The child processes of all threads of a process; empty once it has ended."""
    pids: list[int] = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                pids += map(int, (thread / "children").read_text().split())
    return pids


def process_tree(pid: int) -> list[int]:
    """A process and its descendants."""
    pids = [pid]
    # The loop also visits what it appends.
    for parent in pids:
        pids += children(parent)
    return pids


@contextmanager
def handling(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Handle these signals with ``handler``. Does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in old.items():
            signal.signal(number, before)


@contextmanager
def terminate_as_interrupt() -> Iterator[None]:
    """Make SIGTERM raise ``KeyboardInterrupt``, so that cleanup code runs."""
    with handling([signal.SIGTERM], _interrupt):
        yield


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
