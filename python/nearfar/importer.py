"""Traces of other tools, imported (``docs/formats.md``)."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from nearfar import _engine


def formats() -> dict[str, str]:
    """Names of the formats that can be imported, each with a one-line summary."""
    return dict(_engine.import_formats())


def default_out(source: str | PathLike[str]) -> Path:
    """Where ``source`` is imported to unless told: its bare name and ``.trace``, right here.

    A suffix of compression and then one more are dropped: ``runs/app.din.gz`` gives
    ``app.trace``, standard input (``-``) gives ``stdin.trace``.
    """
    if str(source) == "-":
        return Path("stdin.trace")
    path = Path(source)
    if path.suffix in {".gz", ".xz", ".zst"}:
        path = path.with_suffix("")
    return Path(f"{path.stem}.trace")


def import_trace(
    source: str | PathLike[str],
    out: str | PathLike[str] | None = None,
    *,
    format: str | None = None,
    force: bool = False,
    skip_bad: int = 0,
    max_refs: int | None = None,
    object_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Import the file ``source`` into a trace folder and return the folder.

    Args:
        source: the file, or ``-`` for standard input; gzip, xz and zstd are undone on the fly.
        out: the trace folder; ``default_out(source)`` if not given. Whole or not there at all.
        format: a name from ``formats()``; without it the content decides, where it can.
        force: replace an existing trace.
        skip_bad: bad records to let through; ``trace.json`` counts them.
        max_refs: stop after this many references.
        object_bytes: bytes that an object id stands for (``oracle-general``; 4096 by default).
        progress: called with the number of references so far, about every million.

    Raises:
        NearfarError: bad input, with one line that says file, record and byte.
    """
    to = default_out(source) if out is None else Path(out)
    _engine.import_trace(
        Path(source),
        to,
        format=format,
        force=force,
        skip_bad=skip_bad,
        max_refs=max_refs,
        object_bytes=object_bytes,
        progress=progress,
    )
    return to
