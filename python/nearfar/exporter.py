"""Exports traces to formats of other tools (``docs/formats.md``)."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Unpack

from nearfar import _engine
from nearfar.declared import export as declared
from nearfar.declared import names
from nearfar.filter import view_of
from nearfar.schema import takes


def formats() -> dict[str, str]:
    """Names of the export formats, each with a one-line summary."""
    return dict(names.EXPORT_FORMAT)


@takes(declared.OPTIONS)
def export_trace(
    trace: str | PathLike[str],
    out: str | PathLike[str],
    *,
    format: str,  # noqa: A002
    force: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> int:
    """Export the trace folder ``trace`` to the file ``out``; return the number of references.

    Args:
        trace: a trace folder.
        out: the file, or ``-`` for standard output (not with ``oracle-general``, which must
            seek). Nothing is left after an error.
        force: replace an existing file.
        progress: called with the number of references so far, about every million.
        {options}

    Raises:
        NearfarError: bad input.
    """
    with view_of(Path(trace), {"format": format, **options}, progress) as (seen, given):
        count: int = _engine.export_trace(
            seen.path, Path(out), options=given, force=force, progress=progress
        )
    return count
