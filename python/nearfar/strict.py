"""Strict readers: TOML files of the user, and JSON that nearfar wrote and anybody may have changed.

Sizes are bounded; an error names the file, the line and the key.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from nearfar.errors import NearfarError, did_you_mean

#: An object of a JSON or TOML text, not yet checked.
Json: TypeAlias = dict[str, Any]

#: Maximum bytes of a file that people write; usually it has some pages of text.
_MAX_WRITTEN: Final = 4 << 20
#: Maximum bytes of a file that nearfar wrote, which may list millions of cells or threads.
_MAX_MADE: Final = 1 << 30


def read_file(file: Path, what: str, limit: int = _MAX_WRITTEN) -> bytes:
    """The bytes of a file; ``what`` says in messages what it should be.

    Raises:
        NearfarError: it cannot be read, is not a regular file, or is larger than ``limit`` bytes.
    """
    from nearfar import _engine  # help and completion need no engine

    return _engine.file_read(file, what, limit)


def read_text(file: Path, what: str) -> str:
    """The text of a file; ``what`` as in :func:`read_file`, such as ``a fleet file``.

    Raises:
        NearfarError: as :func:`read_file`, or it is not UTF-8.
    """
    try:
        return read_file(file, what).decode()
    except UnicodeDecodeError as error:
        raise NearfarError(f"{file}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def parse_toml(file: Path, text: str, see: str) -> Json:
    """The tables of a TOML text; ``see`` names the page of the docs that has an example.

    Raises:
        NearfarError: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also huge numbers and deep nesting
        raise NearfarError(f"{file}: not TOML: {error}; see the example in {see}") from None


def read_toml(file: Path, what: str, see: str) -> Json:
    """The tables of a TOML file: :func:`read_text`, then :func:`parse_toml`."""
    return parse_toml(file, read_text(file, what), see)


def read_trace(trace: Path) -> bytes:
    """The bytes of a trace's ``trace.json``. Raises as :func:`read_file`."""
    return read_file(trace / "trace.json", "trace.json", _MAX_MADE)


def read_json(file: Path) -> Any:
    """The value of a JSON file that nearfar wrote.

    Raises:
        NearfarError: as :func:`read_file`.
        ValueError: as :func:`parse_json`.
    """
    return parse_json(read_file(file, "a JSON file of nearfar", _MAX_MADE))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a number that is not finite.
    """

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError(f"{number[:20]} is not a finite number")
        return value

    try:
        return json.loads(text, parse_float=finite, parse_constant=finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Complaint:
    """Makes errors that name the file, the line and the key."""

    def __init__(self, name: str, text: str) -> None:
        """Take the name of the file and its text, to find lines in."""
        self.name, self.lines = name, text.splitlines()

    def __call__(self, key: str, what: str) -> NearfarError:
        """The error for the dotted ``key``, which ``what`` describes."""
        *table, last = key.split(".", 1)
        wanted = [re.escape(last), re.escape(f'"{last}"')]
        line_of = re.compile(rf"\s*(\[{re.escape(key)}\]|({'|'.join(wanted)})\s*=)")
        header = re.compile(rf"\s*\[?{re.escape(table[0])}\b" if table else "")
        # The first line that sets a key of this name, in any table; else the header of its table.
        numbers = [at for at, line in enumerate(self.lines, 1) if line_of.match(line)]
        numbers += [at for at, line in enumerate(self.lines, 1) if table and header.match(line)]
        line = f" line {numbers[0]}" if numbers else ""
        return NearfarError(f"{self.name}{line} key {key}: {what}")

    def unless_known(self, path: str, key: str, known: Mapping[str, object]) -> None:
        """Raise unless ``known`` has ``key``; the message suggests the nearest known key."""
        if key not in known:
            hint, listed = did_you_mean(key, known), ", ".join(known)
            raise self(path, f"unknown key `{key[:60]}`{hint} (keys here: {listed})")
