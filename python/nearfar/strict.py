"""Files read strictly: the user's TOML, with bounds, errors name file, line and key.

And JSON that nearfar wrote itself, which anybody may have changed since.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nearfar import _engine
from nearfar.errors import NearfarError

#: Such a file is some pages of text; anything much larger is a mistake.
_LARGEST: Final = 4 << 20
#: What nearfar wrote may list millions of cells or threads.
_LARGEST_MADE: Final = 1 << 30


def read_file(file: Path, what: str, most: int = _LARGEST) -> bytes:
    """The bytes of a file of at most ``most``; ``what`` is what it should be.

    Raises:
        NearfarError: it cannot be read, is no regular file (a pipe, a device) or is larger.
    """
    return _engine.file_read(file, what, most)


def read_text(file: Path, what: str) -> str:
    """The text of a TOML file; ``what`` is what it should be, such as ``a fleet file``.

    Raises:
        NearfarError: as :func:`read_file`; it is not UTF-8.
    """
    try:
        return read_file(file, what).decode()
    except UnicodeDecodeError as error:
        raise NearfarError(f"{file}: byte {error.start} is not UTF-8; save it as UTF-8") from None


def parse_toml(file: Path, text: str, see: str) -> dict[str, Any]:
    """The tables of a TOML text; ``see`` is the page with an example.

    Raises:
        NearfarError: it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOML errors, huge numbers, deep nesting
        raise NearfarError(f"{file}: not TOML: {error}; see the example in {see}") from None


def read_toml(file: Path, what: str, see: str) -> dict[str, Any]:
    """Both: the tables of a TOML file. Raises as they do."""
    return parse_toml(file, read_text(file, what), see)


def read_trace(trace: Path) -> bytes:
    """The bytes of the ``trace.json`` of a trace. Raises as :func:`read_file`."""
    return read_file(trace / "trace.json", "trace.json", _LARGEST_MADE)


def read_json(file: Path) -> Any:
    """The value of a JSON file that nearfar wrote.

    Raises:
        NearfarError: as :func:`read_file`.
        ValueError: as :func:`parse_json`.
    """
    return parse_json(read_file(file, "such a file", _LARGEST_MADE))


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text in which every number is finite, as in all that nearfar writes.

    Raises:
        ValueError: it is not.
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
    """Makes the error that names the file, the line and the key."""

    def __init__(self, name: str, text: str) -> None:
        """Keep the name of the file and its text, in which lines are looked for."""
        self.name, self.lines = name, text.splitlines()

    def __call__(self, key: str, what: str) -> NearfarError:
        """The error that says ``what`` of the dotted ``key``."""
        *table, last = key.split(".", 1)
        wanted = [re.escape(last), re.escape(f'"{last}"')]
        line_of = re.compile(rf"\s*(\[{re.escape(key)}\]|({'|'.join(wanted)})\s*=)")
        header = re.compile(rf"\s*\[?{re.escape(table[0])}\b" if table else "")
        numbers = [at for at, line in enumerate(self.lines, 1) if line_of.match(line)]
        numbers += [at for at, line in enumerate(self.lines, 1) if table and header.match(line)]
        line = f" line {numbers[0]}" if numbers else ""
        return NearfarError(f"{self.name}{line} key {key}: {what}")

    def unless_known(self, path: str, key: str, known: Mapping[str, Any]) -> None:
        """Raise if ``key`` is none of ``known``, with the nearest of them."""
        if key not in known:
            meant = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean `{meant[0]}`?" if meant else ""
            listed = ", ".join(known)
            raise self(path, f"unknown key `{key[:60]}`{hint} (keys here: {listed})")
