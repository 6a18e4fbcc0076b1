"""Shell lines that reserve a host's pool of huge pages until the next boot.

Sets: ``nr_hugepages`` of the row's size, so that enough pages are free for the whole guest with
``--set-memory``, else for the program. For a fleet, one script per host with the sum of
its VMs. Pages that others use or have reserved are not counted as free. Running it twice changes
nothing.

Cannot: find pages in fragmented memory: the script then reports how many are free, and fails.
Reserve them at boot with the kernel parameters in its comment.

Do not use: while the VMs run: the pages they use are not free, so it would reserve more. For
memory that should be swapped: pages of a pool are never swapped.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearfar.emit._page import MIB, PageRow, pool_lines, pool_pages, uses_hugetlb
from nearfar.emit._shell import script
from nearfar.errors import NearfarError
from nearfar.sizes import short

SUMMARY = "shell lines that reserve huge pages"
SUFFIX = ".sh"
NEEDS = ("vm", "settable_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: PageRow) -> str:
    """The pool of one VM."""
    if not uses_hugetlb(row, "hugetlbfs"):
        size = short(row["settable_page_bytes"])
        raise NearfarError(f"{row['vm']}: pages of {size} need no pool; nothing to reserve")
    return emit_host(row["vm"], [row])


def emit_host(host: str, rows: Sequence[PageRow]) -> str:
    """The pools of a host: the sums of its VMs."""
    pools: dict[int, int] = {}
    for row in rows:
        size = row["settable_page_bytes"]
        if size >= 2 * MIB:
            pools[size] = pools.get(size, 0) + pool_pages(row)
    if not pools:
        raise NearfarError(f"{host}: no VM has pages of 2M or 1G; nothing to reserve")
    pairs = sorted(pools.items())
    parameters = [f"hugepagesz={short(size)} hugepages={count}" for size, count in pairs]
    comments = [
        f"nearfar: {host}: a pool of huge pages",
        f"Kernel parameters that reserve it at boot: {' '.join(parameters)}",
    ]
    if not any(row.get("guest_memory_bytes") for row in rows):
        comments.append("Sized for the programs only; --set-memory sizes it for whole guests.")
    return script(comments, [line for size, count in pairs for line in pool_lines(size, count)])
