"""Processes that must not outlive this one, and signals that end it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def running(
    command: Sequence[str | os.PathLike[str]], **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that ends with the block, or with this process, even by SIGKILL.

    Signals that end this process wait until it has the program in its hands.

    Args:
        command: the program and its arguments.
        options: of :class:`subprocess.Popen`.
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
    """Signals that end this process come when the block is done."""
    came: list[int] = []
    ours = (signal.SIGINT, signal.SIGTERM)
    numbers = [number for number in ours if callable(signal.getsignal(number))]
    try:
        with handling(numbers, lambda number, _frame: came.append(number)):
            yield
    finally:
        for number in came:
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


@contextmanager
def handling(
    numbers: Sequence[int], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """While it lasts, these signals go to ``handler``. Outside the main thread nothing changes."""
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
    """While it lasts, SIGTERM is what Ctrl-C is: what must be closed or removed is."""
    with handling([signal.SIGTERM], _interrupt):
        yield


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
