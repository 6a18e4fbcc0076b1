"""Swap devices: the one of this machine, and where files are if it is memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from nearfar.declared import paging as declared
    from nearfar.machine import Machine

#: The value of ``--swap`` without swap.
NONE: Final = "none"
#: The swap device that is memory.
ZRAM: Final = "zram"
#: The disk with files of a machine without another storage.
DISK: Final = "nvme"
#: Linux reads what it has evicted page by page.
_PAGE: Final = 4096


def usual(swaps: Path = Path("/proc/swaps"), blocks: Path = Path("/sys/class/block")) -> str:
    """The built-in storage that is most like the swap of highest priority; :data:`NONE` without.

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
    disk = re.sub(r"(?<=\d)p\d+$|(?<=[a-z])\d+$", "", name)
    try:
        rotates = (blocks / disk / "queue" / "rotational").read_text().strip() == "1"
    except OSError:
        rotates = False
    return "hdd" if rotates else "nvme"


def with_files(
    rows: Sequence[declared.Row], machine: Machine, swap: str, disk: str
) -> list[declared.Row]:
    """The rows of a swap device, with files read from a disk.

    Args:
        rows: of a paging study with ``--view machine``, of both storages.
        machine: has both.
        swap: the swap device.
        disk: the storage with files; may be the swap device.
    """
    on_disk = {
        (row["memory_bytes"], row["page_bytes"]): row for row in rows if row["storage"] == disk
    }
    (swap_ns,), (disk_ns,) = (machine.io_ns(name, [_PAGE]) for name in (swap, disk))
    found = []
    for row in rows:
        if row["storage"] != swap:
            continue
        again = row["file_rereads"] * (disk_ns - swap_ns) / row["references"]
        start = on_disk[row["memory_bytes"], row["page_bytes"]]["start_ns"] or 0.0
        made = {
            **row,
            "total_ns": row["total_ns"] + again + start - (row["start_ns"] or 0.0),
            "io_ns": (row["io_ns"] or 0.0) + again,
            "start_ns": start,
        }
        found.append(cast("declared.Row", made))
    return found
