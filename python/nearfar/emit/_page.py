"""Shared by emitters of page sizes: host settings by page size and their description."""

from __future__ import annotations

from typing import Final, NotRequired, TypedDict

from nearfar.errors import NearfarError
from nearfar.sizes import short

NEEDS: Final = (
    "vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch",
)  # fmt: skip
KIB, MIB = 1024, 1024 * 1024
THP = "/sys/kernel/mm/transparent_hugepage"
HUGETLB = "/sys/kernel/mm/hugepages"


class PageRow(TypedDict):
    """Columns of ``nearfar advise`` and ``nearfar size`` that emitters of page sizes read."""

    vm: str
    settable_page_bytes: int
    advised_page_bytes: int
    mechanism: str
    memory_bytes: int
    arch: str
    guest_memory_bytes: NotRequired[int | None]


def page_count(row: PageRow, size: int) -> int:
    """Number of pages of the row's page size that hold ``size`` bytes."""
    return -(-size // row["settable_page_bytes"])


def pool_pages(row: PageRow) -> int:
    """Number of huge pages that hold the guest if its memory is set, else the program."""
    return page_count(row, row.get("guest_memory_bytes") or row["memory_bytes"])


def setting_file(row: PageRow) -> str:
    """The file that sets the row's page size on a host.

    Raises:
        NearfarError: the size is the base page of another kernel build.
    """
    size, mechanism = row["settable_page_bytes"], row["mechanism"]
    if mechanism == "granule":
        raise granule_error(row)
    if mechanism in ("mthp", "thp"):
        return f"{THP}/hugepages-{size // KIB}kB/enabled"
    return pool_file(size) if mechanism == "hugetlb" else f"{THP}/enabled"


def setting_lines(row: PageRow) -> list[str]:
    """Shell lines that set the row's page size on this host.

    They do not shrink a pool. A THP size that is ``always`` stays so. For the base page, ``always``
    becomes ``madvise``, but only in the setting for all sizes.

    Raises:
        NearfarError: as :func:`setting_file`.
    """
    path = setting_file(row)
    if row["mechanism"] == "base":
        return [
            f"file={path}",
            'case $(cat $file) in *"[always]"*) echo madvise > $file ;; esac',
        ]
    if row["mechanism"] == "hugetlb":
        return pool_lines(row["settable_page_bytes"], pool_pages(row))
    return thp_lines(path)


def who_gets_pages(row: PageRow) -> list[str]:
    """A comment line that says which programs get the pages."""
    if row["mechanism"] == "base":
        return [
            "Larger pages only for programs that request them. Sizes that are set to `always` on "
            "their own (hugepages-*kB/enabled) stay."
        ]
    if row["mechanism"] not in ("mthp", "thp"):
        return []
    return [
        "Programs that request such pages get them (MADV_HUGEPAGE; QEMU does). For others: `echo "
        "always` "
        "to the same file, or `nearfar apply` for one program."
    ]


def thp_lines(path: str) -> list[str]:
    """Shell lines that set a THP size to ``madvise`` if it is off.

    ``madvise``, not ``always``: QEMU requests huge pages for guest memory, and the rest of the host
    does not change.
    """
    return [
        f"file={path}",
        "now=$(cat $file)",
        f'case $now in *"[inherit]"*) now=$(cat {THP}/enabled) ;; esac',
        'case $now in *"[never]"*) echo madvise > $file ;; esac',
    ]


def pool_file(size: int) -> str:
    """The file with the number of huge pages of ``size`` bytes."""
    return f"{HUGETLB}/hugepages-{size // KIB}kB/nr_hugepages"


def pool_lines(size: int, count: int) -> list[str]:
    """Shell lines that grow a pool until ``count`` huge pages are free, or fail."""
    message = f"only $(free) of {count} huge pages of {short(size)} are free; reserve them at boot"
    return [
        f"pool={pool_file(size).rpartition('/')[0]}",
        "free() { echo $(($(cat $pool/free_hugepages) - $(cat $pool/resv_hugepages))); }",
        f"more=$(({count} - $(free)))",
        "[ $more -le 0 ] || echo $(($(cat $pool/nr_hugepages) + more)) > $pool/nr_hugepages",
        f'[ $(free) -ge {count} ] || {{ echo "{message}" >&2; exit 1; }}',
    ]


def guest_memory(row: PageRow) -> int:
    """Guest memory in bytes, rounded up to whole pages of the row's size; 0 if it is not set."""
    return page_count(row, row.get("guest_memory_bytes") or 0) * row["settable_page_bytes"]


def not_set(row: PageRow, tool: str) -> list[str]:
    """A comment line for a multi-size THP, which ``tool`` cannot set: what can set it."""
    if row["mechanism"] != "mthp":
        return []
    size = short(row["settable_page_bytes"])
    return [
        f"Does not set pages of {size}, for which {tool} has no setting. In the guest: --emit "
        "kernel-cmdline; on the host, behind the guest's memory: --emit sysfs."
    ]


def uses_hugetlb(row: PageRow, tool: str) -> bool:
    """Whether ``tool`` takes the row's pages from hugetlbfs: 2 MiB and larger.

    Raises:
        NearfarError: the size is the base page of another kernel build, or it is multi-size THP and
            ``tool`` has nothing else to set.
    """
    if row["mechanism"] == "granule":
        raise granule_error(row)
    size = row["settable_page_bytes"]
    if row["mechanism"] == "mthp" and not guest_memory(row):
        raise NearfarError(
            f"{row['vm']}: {tool} cannot set pages of {short(size)}; set them on the host: "
            "--emit sysfs"
        )
    return size >= 2 * MIB


def granule_error(row: PageRow) -> NearfarError:
    """The error for a base page other than 4 KiB."""
    size = short(row["settable_page_bytes"])
    return NearfarError(
        f"{row['vm']}: {size} is a base page on {row['arch']}, which no setting changes; "
        f"boot a kernel built with CONFIG_ARM64_{size}_PAGES"
    )


def heading(row: PageRow) -> str:
    """A comment line with the VM and its page size."""
    size, advised = short(row["settable_page_bytes"]), short(row["advised_page_bytes"])
    text = f"nearfar: {row['vm']}: pages of {size}"
    return text if size == advised else f"{text} (advised {advised}, which cannot be set)"
