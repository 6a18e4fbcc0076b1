"""Generates synthetic traces with known statistics (``docs/generate.md``)."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Unpack

from nearfar import _engine
from nearfar.declared import generate as declared
from nearfar.declared import names
from nearfar.schema import takes


def generators() -> dict[str, str]:
    """Names of the generators, each with a one-line summary."""
    return dict(names.GENERATOR)


@takes(declared.OPTIONS)
def generate(
    name: str,
    out: str | PathLike[str],
    *,
    refs: int,
    pages: int,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Path:
    """Generate a trace folder and return it. The same arguments give the same bytes.

    Args:
        out: the trace folder. Nothing is left after an error.
        force: replace an existing trace.
        progress: called with the number of references so far, about every million.
        {options}

    Raises:
        NearfarError: an invalid argument, or the trace cannot be written.
    """
    to = Path(out)
    given = {"name": name, "refs": refs, "pages": pages, **options}
    _engine.generate_trace(to, options=given, force=force, progress=progress)
    return to
