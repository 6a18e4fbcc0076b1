"""QEMU options: the guest's memory and what backs it.

Sets: ``-m`` and a memory backend: for 2 MiB and larger a hugetlbfs memfd of that page size, below
that anonymous memory, for which QEMU asks for transparent huge pages (``madvise``).

Cannot: set a multi-size THP size itself: the host's ``sysfs`` setting does, and the comment says
so. Cannot set the guest's own page size: see ``kernel-cmdline``.

Do not use: hugetlbfs where the host should swap the guest, or has not reserved that many pages:
QEMU then does not start.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._page import KIB, MIB, granule, heading, kib, short
from nearfar.errors import NearfarError

SUMMARY = "QEMU options"
SUFFIX = ".args"
NEEDS = ("vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch")

_MACHINES = {"x86-64": "q35", "aarch64": "virt"}


def emit(row: Row) -> str:
    """Comment lines, then the options, one a line, for `qemu-system-... $(grep -v '^#' FILE)`."""
    if row["mechanism"] == "granule":
        raise NearfarError(granule(row))
    size = int(row["settable_page_bytes"])
    large = size >= 2 * MIB
    # QEMU wants guest memory in whole MiB on some machines.
    unit = max(size if large else 4 * KIB, MIB)
    memory = kib(-(-int(row["memory_bytes"]) // unit) * unit)
    backend = f"size={memory}K"
    kind = "memory-backend-ram"
    if large:
        kind, backend = "memory-backend-memfd", f"{backend},hugetlb=on,hugetlbsize={short(size)}"
    lines = [f"# {heading(row)}"]
    if row["mechanism"] == "mthp":
        lines.append(f"# QEMU cannot set {short(size)} pages: also apply --emit sysfs on the host.")
    lines += [
        f"-machine {_MACHINES[str(row['arch'])]},memory-backend=ram0",
        f"-m {memory}K",
        f"-object {kind},id=ram0,{backend}",
    ]
    return "\n".join(lines) + "\n"
