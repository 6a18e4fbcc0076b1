"""Kernel parameters that set the page size of one guest, or of a whole host, from boot.

Sets: ``thp_anon=64K:always`` (multi-size THP of one size, Linux 6.12 and later),
``transparent_hugepage=always thp_anon=2M:always`` (2 MiB), ``hugepagesz=1G hugepages=N``
(hugetlbfs), and for 4 KiB ``transparent_hugepage=madvise``: larger pages only for programs that
request them. In a guest's kernel this sets a page size per VM, as in page-size advice (paper 000).

Cannot: set a base page (a kernel build); set the size of file pages: mTHP is for anonymous memory.

Do not use: on a host with programs that were advised other sizes; ``thp_anon=`` before Linux 6.12,
which ignores it with a log message. With less than 512 MiB of memory, such an older kernel has no
pages of 2 MiB at all, because it also ignores ``transparent_hugepage=always``.
"""

from __future__ import annotations

from nearfar.emit._page import PageRow, granule_error, page_count
from nearfar.sizes import short

SUMMARY = "kernel parameters that set the page size of a guest or host"
SUFFIX = ".cmdline"
NEEDS = ("vm", "settable_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: PageRow) -> str:
    """One line of parameters."""
    if row["mechanism"] == "granule":
        raise granule_error(row)
    size = short(row["settable_page_bytes"])
    # A guest's own pool of huge pages holds the program, not the guest's memory.
    pages = page_count(row, row["memory_bytes"])
    return {
        "base": "transparent_hugepage=madvise",
        "mthp": f"thp_anon={size}:always",
        # Below 512 MiB of memory, the kernel ignores the first parameter, but not thp_anon=.
        "thp": f"transparent_hugepage=always thp_anon={size}:always",
        "hugetlb": f"hugepagesz={size} hugepages={pages}",
    }[row["mechanism"]] + "\n"
