"""Finds the storage of the built-in machines that is most like this machine's swap."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

#: The value of ``--swap`` without swap.
NONE: Final = "none"
#: The swap device that compresses pages in memory.
ZRAM: Final = "zram"


def usual(swaps: Path = Path("/proc/swaps"), blocks: Path = Path("/sys/class/block")) -> str:
    """The name of the storage most like the swap of highest priority; :data:`NONE` without swap.

    Args:
        swaps: the kernel's table: device, type, size, used, priority.
        blocks: the folder with a folder of each block device.
    """
    try:
        lines = [line.split() for line in swaps.read_text().splitlines()[1:]]
    except OSError:
        return NONE
    rows = [line for line in lines if len(line) >= 5]
    if not rows:
        return NONE
    first = max(rows, key=lambda row: int(row[4]))
    name = Path(first[0]).name
    if name.startswith("zram"):
        return "zram"
    # A partition, such as nvme0n1p2 or sda1, has no queue; its disk has one.
    disk = re.sub(r"(?<=\d)p\d+$|(?<=[a-z])\d+$", "", name)
    files = (blocks / each / "queue" / "rotational" for each in (name, disk))
    # A swap file, for example, is no block device.
    rotates = next((file.read_text().strip() == "1" for file in files if file.is_file()), False)
    return "hdd" if rotates else "nvme"
