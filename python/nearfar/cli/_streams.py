"""The three standard streams, as they may be: closed, full, of a reader that is gone."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any


class _Answers(io.FileIO):
    """Standard output: what cannot be written is an error, and says of what; the first time."""

    lost = False

    def write(self, data: Any) -> int:
        if self.lost:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self.lost = True
            raise OSError(error.errno, error.strerror, "standard output") from None


class _Notes(io.FileIO):
    """Standard error: where nobody can be told, nobody is told."""

    def write(self, data: Any) -> int:
        with suppress(OSError):
            return super().write(data)
        return len(data)


def prepare() -> None:
    """Make the streams safe to write to; call it before anything is opened."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, so that no file gets it. Writing to the second fails, as it
            # does where it is closed; programs that are started find all three closed.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    # Bytes of names that are no text are escaped, and so is what an encoding lacks.
    answers = io.BufferedWriter(_Answers(1, "w", closefd=False))
    sys.stdout = _text(answers, sys.stdout)
    sys.stdout.reconfigure(line_buffering=answers.isatty())
    sys.stderr = _text(_Notes(2, "w", closefd=False), sys.stderr)
    sys.stderr.reconfigure(write_through=True)


def _text(raw: Any, was: Any) -> io.TextIOWrapper:
    encoding = "utf-8" if was is None else was.encoding
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
