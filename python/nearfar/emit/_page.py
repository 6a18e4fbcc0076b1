"""What emitters of page sizes share: host settings by page size, and how they are described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearfar.errors import NearfarError

KIB, MIB = 1024, 1024 * 1024
THP = "/sys/kernel/mm/transparent_hugepage"
HUGETLB = "/sys/kernel/mm/hugepages"

Row = Mapping[str, Any]


def kib(size: int) -> int:
    """Whole KiB, rounded up."""
    return -(-size // KIB)


def short(size: int) -> str:
    """``64K``, ``2M``, ``1G``: as the kernel and QEMU read sizes."""
    for unit, factor in (("G", 1024 * MIB), ("M", MIB), ("K", KIB)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def hugetlb_pages(row: Row) -> int:
    """Huge pages of the row's size that hold its memory, rounded up."""
    return -(-int(row["memory_bytes"]) // int(row["settable_page_bytes"]))


def sysfs(row: Row) -> list[tuple[str, str]]:
    """``(path, value)`` of this host's settings for the row's page size; empty for the base page.

    ``madvise``, not ``always``: only programs that ask for it get the size, QEMU's guests among
    them, and the rest of the host stays as it is.

    Raises:
        NearfarError: the size is a base page that only another kernel build has.
    """
    size, mechanism = int(row["settable_page_bytes"]), str(row["mechanism"])
    if mechanism == "granule":
        raise NearfarError(granule(row))
    if mechanism in ("mthp", "thp"):
        return [(f"{THP}/hugepages-{size // KIB}kB/enabled", "madvise")]
    if mechanism == "hugetlb":
        return [(f"{HUGETLB}/hugepages-{size // KIB}kB/nr_hugepages", str(hugetlb_pages(row)))]
    return []


def granule(row: Row) -> str:
    """Why a base page other than 4 KiB cannot be emitted."""
    size = short(int(row["settable_page_bytes"]))
    return (
        f"{row['vm']}: {size} is a base page on {row['arch']}; "
        f"boot a kernel built with CONFIG_ARM64_{size}_PAGES, no setting does it"
    )


def heading(row: Row) -> str:
    """One line that says what is set for whom."""
    size = short(int(row["settable_page_bytes"]))
    advised = short(int(row["advised_page_bytes"]))
    text = f"nearfar advise: {row['vm']}: pages of {size}"
    return text if size == advised else f"{text} (advised {advised}, which cannot be set)"
