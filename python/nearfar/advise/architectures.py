"""Page sizes that an architecture can set, and the mechanism of each.

Sources: Linux ``Documentation/admin-guide/mm/transhuge.rst`` and ``hugetlbpage.rst`` (6.8 and later
for multi-size THP), ``Documentation/arch/arm64/hugetlbpage.rst``. A base page of 4 KiB is assumed;
granules are the base pages of other arm64 kernel builds.

To add an architecture: one entry of :data:`ARCHITECTURES`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from nearfar.errors import unknown

KIB: Final = 1024
MIB: Final = 1024 * KIB

MECHANISMS: Final = {
    "base": "the base page: no huge pages",
    "granule": "a kernel built with this base page",
    "mthp": "multi-size transparent huge pages (Linux 6.8), anonymous memory only",
    "thp": "transparent huge pages",
    "hugetlb": "hugetlbfs: reserved at boot, never swapped out",
}


@dataclass(frozen=True)
class Settable:
    """A page size that can be set, and the mechanism (a key of :data:`MECHANISMS`)."""

    page_bytes: int
    mechanism: str


#: Page sizes by architecture, smallest first.
ARCHITECTURES: Final[dict[str, tuple[Settable, ...]]] = {
    "x86-64": (
        Settable(4 * KIB, "base"),
        *(Settable(16 * KIB << k, "mthp") for k in range(7)),
        Settable(2 * MIB, "thp"),
        Settable(1024 * MIB, "hugetlb"),
    ),
    # A base page of 16 or 64 KiB applies to every fault, so it is preferred to mTHP of that size.
    "aarch64": (
        Settable(4 * KIB, "base"),
        Settable(16 * KIB, "granule"),
        Settable(32 * KIB, "mthp"),
        Settable(64 * KIB, "granule"),
        *(Settable(128 * KIB << k, "mthp") for k in range(4)),
        Settable(2 * MIB, "thp"),
        Settable(1024 * MIB, "hugetlb"),
    ),
}


def settable(arch: str) -> tuple[Settable, ...]:
    """The page sizes that ``arch`` can set.

    Raises:
        NearfarError: there is no such architecture.
    """
    if arch not in ARCHITECTURES:
        raise unknown("--arch: no architecture", arch, ARCHITECTURES, "one of")
    return ARCHITECTURES[arch]


def transparent(arch: str) -> tuple[Settable, ...]:
    """The page sizes that a kernel with 4 KiB base pages can use for anonymous memory.

    Multi-size THP includes the sizes of the granules.

    Raises:
        NearfarError: there is no such architecture.
    """
    return tuple(
        Settable(size.page_bytes, "mthp" if size.mechanism == "granule" else size.mechanism)
        for size in settable(arch)
        if size.mechanism != "hugetlb"
    )


def neighbours(arch: str, page_bytes: int) -> list[Settable]:
    """The settable size itself, else the nearest ones below and above."""
    sizes = settable(arch)
    exact = [size for size in sizes if size.page_bytes == page_bytes]
    below = [size for size in sizes if size.page_bytes < page_bytes]
    above = [size for size in sizes if size.page_bytes > page_bytes]
    return exact or [*below[-1:], *above[:1]]
