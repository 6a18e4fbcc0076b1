"""A configuration of zram-generator: compressed swap for what does not fit.

Sets: ``zram-size``, in MiB: what the program wants beyond its memory (``--memory``), or where it
has all of that beyond what is enough (``--slowdown``). Of a fleet the sum over the VMs of a host.
``compression-algorithm`` is ``zstd``, whose pages are the smallest.

Cannot: make the memory for it: compressed pages lie in the same memory, how many depends on the
data. What else the configuration says of ``[zram0]`` stays.

Do not use: beside zswap, which compresses before zram does. Where the kernel has no zstd: it then
keeps its own algorithm.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearfar import units
from nearfar.emit import Row
from nearfar.emit._memory import MIB
from nearfar.emit._memory import NEEDS as OF_MEMORY
from nearfar.errors import NearfarError

SUMMARY = "a zram-generator.conf for what does not fit"
SUFFIX = ".conf"
NEEDS = (*OF_MEMORY, "memory_bytes")


def emit(row: Row) -> str:
    """Swap for one program."""
    return emit_host(str(row["vm"]), [row])


def emit_host(host: str, rows: Sequence[Row]) -> str:
    """Swap for all programs of a host."""
    size = sum(_beyond(row) for row in rows)
    if size <= 0:
        raise NearfarError(f"{host}: needs all the memory that it wants; zram would not help")
    kept = sum(int(row["wanted_bytes"]) for row in rows) - size
    lines = [
        f"# nearfar advise: {host}: {units.size(size)} beyond {units.size(kept)} of memory",
        "# Put it into /etc/systemd/zram-generator.conf.d/; what else is set for zram0 stays.",
        "[zram0]",
        f"zram-size = {-(-size // MIB)}",
        "compression-algorithm = zstd",
    ]
    return "\n".join(lines) + "\n"


def _beyond(row: Row) -> int:
    """Bytes that a program wants beyond its memory, or beyond what is enough."""
    wanted, given = int(row["wanted_bytes"]), int(row["memory_bytes"])
    return wanted - (given if given < wanted else int(row["enough_bytes"]))
