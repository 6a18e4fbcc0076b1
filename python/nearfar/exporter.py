"""Traces as other tools read them (``docs/formats.md``)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path

from nearfar import _engine
from nearfar import machine as machines
from nearfar.filter import view


def formats() -> dict[str, str]:
    """Names of the formats that can be exported, each with a one-line summary."""
    return dict(_engine.export_formats())


def export_trace(
    trace: str | PathLike[str],
    out: str | PathLike[str],
    *,
    format: str,
    force: bool = False,
    kinds: Sequence[str] = (),
    filter: str = "none",  # noqa: A002
    machine: machines.MachineLike = machines.USUAL,
    max_refs: int | None = None,
    page_bytes: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Export the trace folder ``trace`` to the file ``out``; return the references exported.

    Args:
        trace: a trace folder.
        out: the file, or ``-`` for standard output (not ``oracle-general``, which goes back in
            what it has written). Whole or not there at all.
        format: a name from ``formats()``.
        force: replace an existing file.
        kinds: kinds of references to export (``load``, ``store``, ``fetch``, ``kernel-load``,
            ``kernel-store``); all if empty.
        filter: which references there are: ``none`` (all), ``cache`` (those that miss the CPU
            caches of ``machine``) or ``cache-write-backs`` (:mod:`nearfar.filter`).
        machine: a machine, or name or path of its file, whose caches ``filter`` means.
        max_refs: stop after this many references.
        page_bytes: bytes of the pages that ``oracle-general`` numbers; 4096 by default.
        progress: called with the number of references so far, about every million.

    Raises:
        NearfarError: bad input, with one line that says what and where.
    """
    with view(Path(trace), filter, machines.load(machine), progress) as seen:
        count: int = _engine.export_trace(
            seen.path,
            Path(out),
            format=format,
            force=force,
            kinds=list(kinds),
            max_refs=max_refs,
            page_bytes=page_bytes,
            progress=progress,
        )
    return count
