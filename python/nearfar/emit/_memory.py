"""What emitters of memory limits share: the limits, and how they are described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nearfar import units

Row = Mapping[str, Any]

#: Keys of a row of ``nearfar advise --slowdown`` that emitters of limits read.
NEEDS: Final = ("vm", "storage", "enough_bytes", "wanted_bytes")
MIB: Final = 1 << 20
#: Above all that the program wanted while it was captured: page tables and other memory of the
#: kernel's that its control group is charged with, and inputs that are larger. An assumption.
HEADROOM: Final = 0.25


def high(row: Row) -> int:
    """MiB to which a control group is reclaimed: with that it runs within what was asked."""
    return -(-int(row["enough_bytes"]) // MIB)


def most(row: Row) -> int:
    """MiB that it must not exceed: all that the program wants, and :data:`HEADROOM`."""
    return -(-int(row["wanted_bytes"] * (1 + HEADROOM)) // MIB)


def explained(row: Row) -> list[str]:
    """Where the two limits come from."""
    storage = units.clean(str(row["storage"]))
    return [
        f"nearfar advise: {row['vm']}: {high(row)} MiB are enough, swapping to {storage}; at most",
        f"{most(row)} MiB, a quarter above all that it wanted when it was captured.",
    ]
