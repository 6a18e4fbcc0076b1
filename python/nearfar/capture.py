"""Capture: run an unmodified program under QEMU and write what memory it touches as a trace."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Unpack

from nearfar import _engine
from nearfar.declared import capture as declared
from nearfar.errors import NearfarError
from nearfar.output import watched
from nearfar.processes import handling
from nearfar.schema import takes
from nearfar.units import rest

PLUGIN = Path(__file__).parent / "_plugin" / "libnearfar_qemu_plugin.so"
"""The QEMU plugin, built by ``make plugin``."""


@dataclass(frozen=True)
class Outcome:
    """What came of a capture.

    Attributes:
        path: the trace folder.
        exit_code: what the program exited with; ``None`` when a signal ended it or Ctrl-C did.
        signal: number of the signal that ended the program, or ``None``.
        interrupted: whether the capture was ended by Ctrl-C.
        info: contents of ``trace.json``.
        warnings: what ran unrecorded, a line each.
    """

    path: Path
    exit_code: int | None
    signal: int | None
    interrupted: bool
    info: dict[str, Any]
    warnings: list[str]

    @property
    def complete(self) -> bool:
        """Whether the trace holds all that was asked for."""
        return bool(self.info["complete"])


@dataclass(frozen=True)
class Probe:
    """One thing that capturing needs: its name, whether it is there, why (not), and the fix."""

    name: str
    available: bool
    why: str
    fix: str


def probe() -> list[Probe]:
    """Say for each QEMU, the plugin and shared memory whether it can be used."""
    return [Probe(**found) for found in json.loads(_engine.capture_probe(PLUGIN))]


def default_output(command: Sequence[str]) -> Path:
    """``NAME.trace`` in the current folder, after the program's file name."""
    name = Path(command[0]).name if command else ""
    return Path(f"{name or 'program'}.trace")


@takes(declared.OPTIONS)
def run(
    command: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Outcome:
    """Run ``command`` under QEMU, write its trace, and say what came of it.

    The program's standard streams are those of this process.

    Args:
        command: the program (a path, or a name in ``PATH``) and its arguments.
        output: trace folder to make; by default ``NAME.trace`` in the current folder.
        force: replace an existing trace.
        progress: called about ten times a second with the number of records so far.
        {options}

    Raises:
        NearfarError: the program, QEMU (exit code 3) or the plugin is missing, or the trace
            cannot be written.
        KeyboardInterrupt: Ctrl-C before the program began; later it is part of the outcome. The
            program gets it once, and is waited for; a second one kills it.
    """
    words = [os.fspath(word) for word in command]
    if not words:
        raise NearfarError("command: is empty; put the program after `--`")
    path = Path(output) if output is not None else default_output(words)
    with _interrupts():
        text = _engine.capture_run(
            words,
            path,
            PLUGIN,
            options=dict(options),
            force=force,
            progress=progress or (lambda _: None),
        )
    found = json.loads(text)
    end = found["end"]
    kinds = end if isinstance(end, dict) else {}
    return Outcome(
        path=path,
        exit_code=kinds.get("exit"),
        signal=kinds.get("signal"),
        interrupted=end == "interrupted",
        info=found["info"],
        warnings=found["warnings"],
    )


@takes(declared.OPTIONS)
def capture(
    command: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    **options: Unpack[declared.Options],
) -> Path:
    """Run ``command`` under QEMU and write its trace: :func:`run` for who wants the path only.

    Raises:
        NearfarError: as :func:`run`.
        KeyboardInterrupt: Ctrl-C; the trace up to there is kept, marked incomplete.
    """
    outcome = run(command, output, force=force, progress=meter(), **options)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome.path


def meter(total: int | None = None) -> Callable[[int], None] | None:
    """Show the number of records on standard error; ``None`` when nobody looks.

    Args:
        total: after how many recording stops, where that is known.
    """
    if not watched():
        return None
    started = time.monotonic()

    def show(records: int) -> None:
        seconds = time.monotonic() - started
        text = f"capturing: {records / 1e6:,.1f}"
        if total:
            text += f" of {total / 1e6:,.1f} M records{rest(records, total, seconds)}"
        else:
            text += f" M records, {seconds:.0f} s"
        print(f"\r\x1b[K{text}", end="\r", file=sys.stderr, flush=True)

    return show


class _Interrupt(KeyboardInterrupt):
    """SIGINT or SIGTERM: ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _interrupts() -> AbstractContextManager[None]:
    """While it lasts, SIGTERM ends a capture as Ctrl-C does: the program gets it, once."""
    numbers = [signal.SIGTERM]
    # Whoever handles Ctrl-C, or ignores it, goes on doing so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    return handling(numbers, _interrupt)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if watched():
        print("\r\x1b[Knearfar: waiting for the program to end; once more kills it",
              file=sys.stderr)  # fmt: skip
    raise _Interrupt(number)
