"""What emitters of page sizes share: host settings by page size, and how they are described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearfar.errors import NearfarError

KIB, MIB = 1024, 1024 * 1024
THP = "/sys/kernel/mm/transparent_hugepage"
HUGETLB = "/sys/kernel/mm/hugepages"

Row = Mapping[str, Any]


def short(size: int) -> str:
    """``64K``, ``2M``, ``1G``: as the kernel and QEMU read sizes."""
    for unit, factor in (("G", 1024 * MIB), ("M", MIB), ("K", KIB)):
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def hugetlb_pages(row: Row, held: int) -> int:
    """Huge pages of the row's size that hold so many bytes, rounded up."""
    return -(-held // int(row["settable_page_bytes"]))


def backed_pages(row: Row) -> int:
    """Huge pages that hold a guest whose memory was asked for, else the program."""
    return hugetlb_pages(row, int(row.get("guest_memory_bytes") or row["memory_bytes"]))


def file(row: Row) -> str:
    """The file that sets the row's page size on a host; empty for the base page.

    Raises:
        NearfarError: the size is a base page that only another kernel build has.
    """
    size, mechanism = int(row["settable_page_bytes"]), str(row["mechanism"])
    if mechanism == "granule":
        raise NearfarError(granule(row))
    if mechanism in ("mthp", "thp"):
        return f"{THP}/hugepages-{size // KIB}kB/enabled"
    return pool(size) if mechanism == "hugetlb" else ""


def sysfs(row: Row) -> list[str]:
    """Shell lines that give this host the row's page size; none for the base page.

    What is there already stays: another size, a larger pool, ``always``.

    Raises:
        NearfarError: as :func:`file`.
    """
    path = file(row)
    if not path:
        return []
    if row["mechanism"] == "hugetlb":
        return reserve(int(row["settable_page_bytes"]), backed_pages(row))
    return allow(path)


def allow(path: str) -> list[str]:
    """Shell lines that let programs have the pages of this file that ask for them.

    ``madvise``, not ``always``: QEMU asks for its guests' memory, and the rest of the host stays
    as it is.
    """
    return [
        f"file={path}",
        "now=$(cat $file)",
        f'case $now in *"[inherit]"*) now=$(cat {THP}/enabled) ;; esac',
        'case $now in *"[never]"*) echo madvise > $file ;; esac',
    ]


def pool(size: int) -> str:
    """The file with the number of huge pages of a size."""
    return f"{HUGETLB}/hugepages-{size // KIB}kB/nr_hugepages"


def reserve(size: int, count: int) -> list[str]:
    """Shell lines after which so many huge pages of a size are free, or which fail."""
    said = f"only $(free) of {count} huge pages of {short(size)} are free; reserve them at boot"
    return [
        f"pool={pool(size).rpartition('/')[0]}",
        "free() { echo $(($(cat $pool/free_hugepages) - $(cat $pool/resv_hugepages))); }",
        f"more=$(({count} - $(free)))",
        "[ $more -le 0 ] || echo $(($(cat $pool/nr_hugepages) + more)) > $pool/nr_hugepages",
        f'[ $(free) -ge {count} ] || {{ echo "{said}" >&2; exit 1; }}',
    ]


def guest_memory(row: Row) -> int:
    """Bytes to give the guest, in whole pages of the row's size; 0 where nobody asked for it."""
    asked, size = int(row.get("guest_memory_bytes") or 0), int(row["settable_page_bytes"])
    return -(-asked // size) * size


def large(row: Row, tool: str) -> bool:
    """Whether the row's pages are those of hugetlbfs: 2 MiB and more.

    Raises:
        NearfarError: the size is a base page of another kernel build, or multi-size THP and there
            is nothing else that ``tool`` sets.
    """
    if row["mechanism"] == "granule":
        raise NearfarError(granule(row))
    size = int(row["settable_page_bytes"])
    if row["mechanism"] == "mthp" and not guest_memory(row):
        raise NearfarError(
            f"{row['vm']}: {tool} has no pages of {short(size)}; the host gives them: --emit sysfs"
        )
    return size >= 2 * MIB


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
