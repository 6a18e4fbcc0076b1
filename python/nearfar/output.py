"""Atomic output files; colours and progress on terminals."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from nearfar.errors import NearfarError, of_system

#: Values of ``--color`` and ``--progress``.
WHEN: Final = ("auto", "always", "never")
#: The present values, by option.
_when = {"color": "auto", "progress": "auto"}
#: Inputs of the command.
_inputs: list[Path] = []


def choose(what: str, when: str) -> None:
    """Set ``color`` or ``progress`` to one of :data:`WHEN`, for this process.

    The environment does not change, because captured and measured programs inherit it.
    """
    _when[what] = when


def coloured(stream: IO[str]) -> bool:
    """Whether to colour text for ``stream``.

    With ``--color auto``: on a terminal, unless ``NO_COLOR`` is set (https://no-color.org).
    """
    if _when["color"] != "auto":
        return _when["color"] == "always"
    return stream.isatty() and not os.environ.get("NO_COLOR")


def shows_progress() -> bool:
    """Whether to show progress on standard error; with ``--progress auto``, on a terminal."""
    if _when["progress"] != "auto":
        return _when["progress"] == "always"
    return sys.stderr.isatty()


def add_inputs(paths: Iterable[str | Path]) -> None:
    """Register inputs of the command, which outputs never replace, even with ``force``."""
    _inputs.extend(path for path in map(Path, paths) if path.exists())


def check_output(path: Path, *, force: bool, holds: str | None = None) -> None:
    """Raise the errors that :func:`claimed` would raise, before the work starts."""
    from nearfar import _engine  # help and completion need no engine

    _engine.output_check(path, holds=holds, force=force, inputs=_inputs)
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not folder.is_dir():
        raise NearfarError(f"{path}: {folder} is not a folder; choose another place")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        raise NearfarError(
            f"{path}: {folder} does not accept new files; choose another place"
        ) from None


@contextmanager
def claimed(path: Path, *, force: bool, holds: str | None = None) -> Iterator[Path]:
    """Yield a temporary file or folder, which is renamed to ``path`` at the end of the block.

    If the block fails, it is removed. A path has one writer at a time.

    Args:
        path: the output.
        force: replace a file, or a folder with a file ``holds``. Inputs, and files in trace
            folders, are never replaced.
        holds: name of a file that every such folder has; None if ``path`` is a file.

    Raises:
        NearfarError: the path is not allowed or not writable.
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
    """Write a text file atomically; ``force`` is that of :func:`claimed`."""
    with claimed(path, force=force) as temporary:
        # Names in the text may not be UTF-8.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        _flush(temporary)
    _flush(path.parent)


def commit(temporary: Path, path: Path) -> None:
    """Rename ``temporary`` to ``path``, durably and atomically."""
    _flush(temporary)
    temporary.replace(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
