"""Synthetic traces of known statistics (``docs/generate.md``)."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from nearfar import _engine


def generators() -> dict[str, str]:
    """Names of the generators, each with a one-line summary."""
    return dict(_engine.generators())


def generate(
    name: str,
    out: str | PathLike[str],
    *,
    refs: int,
    pages: int,
    page_bytes: int = 4096,
    seed: int = 0,
    write_ratio: float = 0.0,
    threads: int = 1,
    alpha: float | None = None,
    stride: int | None = None,
    mix: str | None = None,
    phase: int | None = None,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Generate a trace folder and return it. The same arguments give the same bytes.

    Args:
        name: a name from ``generators()``.
        out: the trace folder. Whole or not there at all.
        refs: references in all, each a load or store of 8 aligned bytes and one instruction.
        pages: pages they may touch.
        page_bytes: bytes in a page, a power of two from 8 to 2**30.
        seed: chooses the random streams, 0 to 2**64 - 1.
        write_ratio: share of stores, 0 to 1.
        threads: threads that take turns, one reference each.
        alpha: skew of ``zipf`` and ``scrambled-zipf``, 0 (even) to 100; 1 by default.
        stride: bytes from one reference to the next of ``strided``; a page by default.
        mix: parts of ``mix`` with their weights, ``zipf:0.7,sequential:0.3``.
        phase: references in which each part of ``mix`` runs once; without it every reference
            is drawn by weight.
        force: replace an existing trace.
        progress: called with the number of references so far, about every million.

    Raises:
        NearfarError: an argument that makes no sense, or a disk that does not take the trace.
    """
    to = Path(out)
    _engine.generate_trace(
        name,
        to,
        refs=refs,
        pages=pages,
        page_bytes=page_bytes,
        seed=seed,
        write_ratio=write_ratio,
        threads=threads,
        alpha=alpha,
        stride=stride,
        mix=mix,
        phase=phase,
        force=force,
        progress=progress,
    )
    return to
