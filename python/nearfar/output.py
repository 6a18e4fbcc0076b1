"""Files that are whole or not there; who is looking at what is printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from nearfar.errors import NearfarError, of_system

#: What ``--color`` and ``--progress`` may be.
WHEN: Final = ("auto", "always", "never")

_when = {"color": "auto", "progress": "auto"}
#: What the command reads.
_inputs: list[Path] = []


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


def add_inputs(paths: Iterable[str | Path]) -> None:
    """Note what this command reads: no output takes its place, whatever is forced."""
    _inputs.extend(path for path in map(Path, paths) if path.exists())


def check_output(path: Path, *, force: bool, holds: str | None = None) -> None:
    """Refuse before the work what :func:`claimed` would refuse after it."""
    from nearfar import _engine  # help and completion need no engine

    _engine.output_check(path, holds=holds, force=force, inputs=_inputs)
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise NearfarError(f"{path}: {folder} is not a folder; choose another place")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NearfarError(f"{path}: {folder} is not writable; choose another place")


@contextmanager
def claimed(path: Path, *, force: bool, holds: str | None = None) -> Iterator[Path]:
    """Give a temporary file or folder, which becomes ``path`` when the block is left.

    If the block fails, nothing is left of it. One writer at a time has a path.

    Args:
        path: what is to be made.
        force: replace a file, or a folder that holds a file of the name ``holds``. An input is
            never replaced, nor anything in a trace.
        holds: a file that such folders hold; None for a file.

    Raises:
        NearfarError: the path may not be taken, or cannot be written.
    """
    from nearfar import _engine

    output = _engine.Output(path, holds=holds, force=force, inputs=_inputs)
    try:
        yield output.temporary
        output.commit()
    except OSError as error:
        raise of_system(error, path) from None
    finally:
        output.discard()


def write_whole(path: Path, text: str, *, force: bool) -> None:
    """Write ``text`` to a temporary file and give it the name ``path``; as :func:`claimed`."""
    with claimed(path, force=force) as temporary:
        # A name in the text may have bytes that are no text.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        _flush(temporary)
    _flush(path.parent)


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
