"""Standard streams that may be closed, full, or have no reader."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Output(io.FileIO):
    """Standard output: the first failed write raises an error; later writes are dropped."""

    lost = False

    def write(self, data: ReadableBuffer) -> int:
        if self.lost:
            return memoryview(data).nbytes
        try:
            return super().write(data)
        except OSError as error:
            self.lost = True
            raise OSError(error.errno, error.strerror, "standard output") from None


class _Messages(io.FileIO):
    """Standard error: messages that cannot be written are dropped."""

    def write(self, data: ReadableBuffer) -> int:
        with suppress(OSError):
            return super().write(data)
        return memoryview(data).nbytes


def prepare() -> None:
    """Make the streams safe to write to; call it before any file is opened."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # os.open takes the lowest free number, so no later file gets that number. Number 1 is
            # read-only, so writing to standard output still fails. Child processes do not
            # inherit it.
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    output = io.BufferedWriter(_Output(1, "w", closefd=False))
    sys.stdout = _text(output, sys.stdout)
    sys.stdout.reconfigure(line_buffering=output.isatty())
    sys.stderr = _text(_Messages(2, "w", closefd=False), sys.stderr)
    sys.stderr.reconfigure(write_through=True)


def _text(raw: BinaryIO, was: TextIO | None) -> io.TextIOWrapper:
    """A text stream with the encoding of ``was``; characters that it cannot encode are escaped."""
    encoding = "utf-8" if was is None else was.encoding
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
