"""A configuration of zram-generator: compressed swap for memory that does not fit.

Sets: ``zram-size``, in MiB of uncompressed data, to the private memory of all programs that is
swapped out if each has just enough memory for ``--slowdown``, or has ``--ram`` for itself and its
compressed pages. ``compression-algorithm`` to ``zstd``, which compresses best.

Cannot: reserve the memory that compressed pages take (``--zram-ratio``). Other settings of
``[zram0]`` stay.

Do not use: with zswap, which compresses before zram does. If the kernel lacks zstd: it then uses
its default algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from nearfar import units
from nearfar.emit._memory import MIB
from nearfar.emit._shell import config
from nearfar.errors import NearfarError

SUMMARY = "a zram-generator.conf for memory that does not fit"
SUFFIX = ".conf"
NEEDS = ("vm", "memory_bytes", "swapped_bytes", "zram_bytes")


class SwapRow(TypedDict):
    """Columns of ``nearfar size`` that this emitter reads."""

    vm: str
    memory_bytes: int
    swapped_bytes: int
    zram_bytes: int


def emit(row: SwapRow) -> str:
    """Swap for one program."""
    return emit_host(row["vm"], [row])


def emit_host(host: str, rows: Sequence[SwapRow]) -> str:
    """Swap for all programs of a host."""
    size = sum(row["swapped_bytes"] for row in rows)
    if size <= 0:
        raise NearfarError(
            f"{host}: needs all of its private memory, and files need no swap; zram would not help"
        )
    resident = sum(row["memory_bytes"] for row in rows)
    taken = sum(row["zram_bytes"] for row in rows)
    comments = [
        f"nearfar: {host}: {units.size(size)} do not fit in {units.size(resident)} of memory, and "
        f"take {units.size(taken)} in zram",
        "Install in /etc/systemd/zram-generator.conf.d/; other settings of zram0 stay.",
    ]
    lines = ["[zram0]", f"zram-size = {-(-size // MIB)}", "compression-algorithm = zstd"]
    return config(comments, lines)
