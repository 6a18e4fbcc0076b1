"""Shared by emitters of memory limits: the limits of ``nearfar size`` and their description."""

from __future__ import annotations

from typing import Final, NamedTuple, TypedDict

from nearfar import units
from nearfar.errors import NearfarError


class MemoryRow(TypedDict):
    """Columns of ``nearfar size`` that emitters of limits read."""

    vm: str
    storage: str | None
    memory_bytes: int
    peak_bytes: int
    high_bytes: int | None
    max_bytes: int | None
    no_limit: str | None


NEEDS: Final = ("vm", "memory_bytes", "peak_bytes")
MIB: Final = 1 << 20


class Limits(NamedTuple):
    """Limits in MiB. Above ``high``, which may be None, the kernel reclaims; above ``most`` it
    kills."""

    high: int | None
    most: int


def limits(row: MemoryRow) -> Limits:
    """The limits of a row.

    Raises:
        NearfarError: none is advised.
    """
    if row["max_bytes"] is None:
        raise NearfarError(f"{row['vm']}: no limit is advised: {row['no_limit']}")
    high = row["high_bytes"]
    return Limits(None if high is None else -(-high // MIB), -(-row["max_bytes"] // MIB))


def heading(row: MemoryRow) -> list[str]:
    """Comment lines that explain the limits."""
    peak, needed = units.size(row["peak_bytes"]), units.size(row["memory_bytes"])
    if limits(row).high is None:
        return [f"nearfar: {row['vm']}: peak resident set {peak} in the recorded run."]
    swap = units.clean(row["storage"] or "")
    return [
        f"nearfar: {row['vm']}: {needed} are enough with swap on {swap};",
        f"peak resident set {peak} in the recorded run.",
    ]
