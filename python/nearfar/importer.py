"""Traces of other tools, imported (``docs/formats.md``)."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Unpack

from nearfar import _engine
from nearfar.declared import import_ as declared
from nearfar.declared import names
from nearfar.schema import takes


def formats() -> dict[str, str]:
    """Names of the formats that can be imported, each with a one-line summary."""
    return dict(names.IMPORT_FORMAT)


def default_out(source: str | PathLike[str]) -> Path:
    """Where ``source`` is imported to by default: its bare name and ``.trace``, right here.

    A suffix of compression and then one more are dropped: ``runs/app.din.gz`` gives
    ``app.trace``, standard input (``-``) gives ``stdin.trace``.
    """
    if str(source) == "-":
        return Path("stdin.trace")
    path = Path(source)
    if path.suffix in {".gz", ".xz", ".zst"}:
        path = path.with_suffix("")
    return Path(f"{path.stem}.trace")


@takes(declared.OPTIONS)
def import_trace(
    source: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Path:
    """Import the file ``source`` into a trace folder and return the folder.

    Args:
        source: the file, or ``-`` for standard input; gzip, xz and zstd are undone on the fly.
        out: the trace folder; ``default_out(source)`` if not given. Whole or not there at all.
        force: replace an existing trace.
        progress: called with the number of references so far, about every million.
        {options}

    Raises:
        NearfarError: bad input, with one line that says file, record and byte.
    """
    to = default_out(source) if out is None else Path(out)
    _engine.import_trace(Path(source), to, options=dict(options), force=force, progress=progress)
    return to
