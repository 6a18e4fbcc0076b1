"""Kernel parameters: the page sizes of one guest, or of a whole host, from its boot.

Sets: ``thp_anon=64K:always`` (multi-size THP of one size, Linux 6.12 and later),
``transparent_hugepage=always`` (2 MiB), ``hugepagesz=1G hugepages=N`` (hugetlbfs), and for 4 KiB
``transparent_hugepage=never``. Given to a guest's kernel this is a page size per VM, as
page-size advice (000) means it.

Cannot: set a base page (a kernel build); give file pages per size: mTHP is for anonymous memory.

Do not use: ``transparent_hugepage=never`` on a host with several VMs; parameters of 6.12 on an
older kernel, which ignores them with a line in its log; ``transparent_hugepage=always`` where there
are less than 512 MiB of memory: the kernel sets ``never`` then, whatever was asked.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._page import granule, hugetlb_pages, short
from nearfar.errors import NearfarError

SUMMARY = "kernel parameters of a guest or host"
SUFFIX = ".cmdline"
NEEDS = ("vm", "settable_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: Row) -> str:
    """One line of parameters."""
    size = short(int(row["settable_page_bytes"]))
    # In a guest they hold its program, not the guest.
    pages = hugetlb_pages(row, int(row["memory_bytes"]))
    if row["mechanism"] == "granule":
        raise NearfarError(granule(row))
    return {
        "base": "transparent_hugepage=never",
        "mthp": f"thp_anon={size}:always",
        "thp": "transparent_hugepage=always",
        "hugetlb": f"hugepagesz={size} hugepages={pages}",
    }[str(row["mechanism"])] + "\n"
