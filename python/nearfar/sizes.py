"""Sizes and times as people write them: ``4K``, ``50MB``, ``512,1K,...,2M``, ``1.5ms``.

The engine parses them (``crates/schema/src/units``; docs/shell.md has the grammar). Functions load
the engine when they are called, since help and completion import this module without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nearfar.errors import NearfarError


@dataclass(frozen=True)
class Memory:
    """A memory size: a fraction of the peak resident set, or bytes."""

    value: float
    is_fraction: bool


def list_of(given: str | Iterable[str]) -> list[str]:
    """The words of a comma-separated list, or of a list.

    >>> list_of("zram, nvme")
    ['zram', 'nvme']
    """
    return [word.strip() for word in given.split(",")] if isinstance(given, str) else list(given)


def bytes_of(text: str) -> int | None:
    """Bytes as :func:`parse_bytes` reads them, or None."""
    try:
        return parse_bytes(text, "")
    except NearfarError:
        return None


def short(size: int) -> str:
    """Bytes in the format of the command line, the kernel and QEMU: ``64K``, ``2M``, ``1G``."""
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def parse_bytes(text: str, flag: str) -> int:
    """Bytes of ``4096``, ``4K`` and ``4KiB`` (powers of 1024), ``4KB`` (powers of 1000).

    Raises:
        NearfarError: naming ``flag``, if it is not a whole number of bytes from 1 to 2^60.
    """
    from nearfar import _engine

    return _engine.parse_bytes(text, flag)


def parse_page_sizes(text: str, flag: str = "--page-sizes") -> list[int]:
    """Page sizes of a list; ``...`` is the doublings between its neighbours.

    >>> parse_page_sizes("512,1K,...,8K")
    [512, 1024, 2048, 4096, 8192]

    Raises:
        NearfarError: naming ``flag``, if an item is not a size or ``...`` lacks a neighbour.
    """
    from nearfar import _engine

    return _engine.parse_page_sizes(text, flag)


def parse_memory(text: str, flag: str = "--memory") -> list[Memory]:
    """Memory sizes, each ``10%`` of the peak resident set or bytes; ``...`` continues a series.

    The step is the difference of the two sizes before ``...``, or the only size before it.

    >>> [m.value for m in parse_memory("10%,...,50%")]
    [0.1, 0.2, 0.3, 0.4, 0.5]

    Raises:
        NearfarError: naming ``flag``, if an item is no size or ``...`` leads to no larger one.
    """
    from nearfar import _engine

    return [
        Memory(size, is_fraction=False)
        if size is not None
        else Memory(fraction or 0.0, is_fraction=True)
        for fraction, size in _engine.parse_memory(text, flag)
    ]


def parse_time(text: str, flag: str) -> int:
    """Nanoseconds of ``50us``, ``0ns``, ``1.5ms``.

    Raises:
        NearfarError: naming ``flag``, if it is not a whole number of nanoseconds up to 1000 s.
    """
    from nearfar import _engine

    return _engine.parse_nanoseconds(text, flag)
