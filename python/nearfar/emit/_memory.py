"""Shared by emitters of memory limits: the limits and their description."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar import units


class MemoryRow(TypedDict):
    """Columns of ``nearfar advise --slowdown`` that emitters of limits read."""

    vm: str
    storage: str
    enough_bytes: int
    wanted_bytes: int
    memory_bytes: int


NEEDS: Final = ("vm", "storage", "enough_bytes", "wanted_bytes")
MIB: Final = 1 << 20
#: Share added to the memory that the program used during capture: for page tables and other kernel
#: memory charged to its control group, and for larger inputs. An assumption.
HEADROOM: Final = 0.25


def high(row: MemoryRow) -> int:
    """``memory.high`` in MiB: with it the slowdown stays within the requested limit."""
    return -(-row["enough_bytes"] // MIB)


def maximum(row: MemoryRow) -> int:
    """``memory.max`` in MiB: the memory used during capture, and :data:`HEADROOM`."""
    return -(-int(row["wanted_bytes"] * (1 + HEADROOM)) // MIB)


def heading(row: MemoryRow) -> list[str]:
    """Comment lines that explain the two limits."""
    storage = units.clean(row["storage"])
    return [
        f"nearfar advise: {row['vm']}: {high(row)} MiB are enough, with swap on {storage}. The",
        f"maximum is {maximum(row)} MiB, a quarter more than it used when it was captured.",
    ]
