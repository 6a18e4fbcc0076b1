"""Shell lines that reserve a host's pool of huge pages, until the next boot.

Sets: ``nr_hugepages`` of the row's size, so that as many pages are free as hold the VM's memory:
with ``--set-memory`` the guest's, else the program's. Of a fleet one script for each host, with the
sum of its VMs. Pages that others have or have reserved stay theirs; run twice it changes nothing.

Cannot: find pages in memory that is fragmented: the script then says how many there are, and fails.
Reserve them at boot by kernel parameters, as its comment has them.

Do not use: while the VMs run: their pages are not free, and more are reserved beside them. For
memory that should be swapped: huge pages of a pool never are.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.emit import Row
from nearfar.emit._page import MIB, backed_pages, large, reserve, short
from nearfar.emit._shell import script
from nearfar.errors import NearfarError

SUMMARY = "shell lines that reserve huge pages"
SUFFIX = ".sh"
NEEDS = ("vm", "settable_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: Row) -> str:
    """The pool of one VM."""
    if not large(row, "hugetlbfs"):
        raise NearfarError(f"{row['vm']}: pages of 4K need no pool; nothing to reserve")
    return emit_host(str(row["vm"]), [row])


def emit_host(host: str, rows: Sequence[Row]) -> str:
    """The pools of a host: what its VMs need together."""
    pools: dict[int, int] = {}
    for row in rows:
        size = int(row["settable_page_bytes"])
        if size >= 2 * MIB:
            pools[size] = pools.get(size, 0) + backed_pages(row)
    if not pools:
        raise NearfarError(f"{host}: no VM has pages of 2M or 1G; nothing to reserve")
    words = [f"hugepagesz={short(size)} hugepages={count}" for size, count in sorted(pools.items())]
    says = [
        f"nearfar advise: {host}: a pool of huge pages",
        f"At boot, as kernel parameters: {' '.join(words)}",
    ]
    if not any(row.get("guest_memory_bytes") for row in rows):
        says.append("It holds the programs alone; with --set-memory it holds whole guests.")
    return script(says, [line for size in sorted(pools) for line in reserve(size, pools[size])])
