"""Files that are whole or not there; who is looking at what is printed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Final

#: What ``--color`` and ``--progress`` may be.
WHEN: Final = ("auto", "always", "never")

_when = {"color": "auto", "progress": "auto"}


def choose(what: str, when: str) -> None:
    """Set ``color`` or ``progress`` to one of :data:`WHEN`, for this process alone.

    The environment stays as it is: a program that is captured or measured inherits it.
    """
    _when[what] = when


def coloured(stream: IO[str]) -> bool:
    """Whether text for ``stream`` carries colours.

    ``--color`` decides; with ``auto`` a ``NO_COLOR`` that is not empty forbids them
    (https://no-color.org), and else a terminal has them.
    """
    if _when["color"] != "auto":
        return _when["color"] == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR")


def watched() -> bool:
    """Whether progress is shown on standard error: to a terminal, unless ``--progress`` differs."""
    if _when["progress"] != "auto":
        return _when["progress"] == "always"
    return sys.stderr.isatty()


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        commit(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def commit(temporary: Path, path: Path) -> None:
    """Rename ``temporary`` to ``path``: after a power cut it is there whole or not at all."""
    _flush(temporary)
    temporary.replace(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
