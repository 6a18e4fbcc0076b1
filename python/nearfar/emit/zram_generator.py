"""A configuration of zram-generator: compressed swap for memory that does not fit.

Sets: ``zram-size``, in MiB: what the program uses beyond ``--memory``; if all of it fits, what it
uses beyond the memory that is enough (``--slowdown``). For a fleet, the sum over the VMs of a host.
``compression-algorithm`` is ``zstd``, which compresses best.

Cannot: reserve memory for it: compressed pages use the same memory, and how much depends on the
data. Other settings of ``[zram0]`` stay.

Do not use: with zswap, which compresses before zram does. If the kernel lacks zstd: it then uses
its default algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearfar import units
from nearfar.emit._memory import MIB, MemoryRow
from nearfar.emit._memory import NEEDS as MEMORY_NEEDS
from nearfar.errors import NearfarError

SUMMARY = "a zram-generator.conf for what does not fit"
SUFFIX = ".conf"
NEEDS = (*MEMORY_NEEDS, "memory_bytes")


def emit(row: MemoryRow) -> str:
    """Swap for one program."""
    return emit_host(row["vm"], [row])


def emit_host(host: str, rows: Sequence[MemoryRow]) -> str:
    """Swap for all programs of a host."""
    size = sum(_swap_bytes(row) for row in rows)
    if size <= 0:
        raise NearfarError(f"{host}: needs all the memory that it uses; zram would not help")
    resident = sum(row["wanted_bytes"] for row in rows) - size
    lines = [
        f"# nearfar advise: {host}: {units.size(size)} beyond {units.size(resident)} of memory",
        "# Install in /etc/systemd/zram-generator.conf.d/; other settings of zram0 stay.",
        "[zram0]",
        f"zram-size = {-(-size // MIB)}",
        "compression-algorithm = zstd",
    ]
    return "\n".join(lines) + "\n"


def _swap_bytes(row: MemoryRow) -> int:
    """Bytes that a program uses beyond its memory, or beyond the memory that is enough."""
    wanted, memory = row["wanted_bytes"], row["memory_bytes"]
    return wanted - (memory if memory < wanted else row["enough_bytes"])
