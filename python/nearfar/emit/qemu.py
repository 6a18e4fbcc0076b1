"""QEMU options to append to the command line that starts a guest.

Sets: for page sizes of 2 MiB and more ``-mem-path``, which backs all of the guest's memory with the
host's hugetlbfs pages of that size; with ``--set-memory`` also ``-m``.

Cannot: set a multi-size THP size: set it on the host (``sysfs``), because QEMU requests transparent
huge pages for guest memory. Cannot set the guest's own page size: see ``kernel-cmdline``.

Do not use: if the guest's memory already has backends (``-machine memory-backend=``, ``-numa
node,memdev=``): QEMU fails; a comment in the output shows the options of such a backend. Do not use
hugetlbfs if the host should swap the guest, or has too few reserved pages for QEMU to start.
"""

from __future__ import annotations

from nearfar.emit._page import MIB, PageRow, guest_memory, heading, not_set, uses_hugetlb
from nearfar.emit._page import NEEDS as NEEDS
from nearfar.emit._shell import config
from nearfar.sizes import short

SUMMARY = "QEMU options to append"
SUFFIX = ".args"


def emit(row: PageRow) -> str:
    """Comments, then one option per line, for ``qemu-system-... $(grep -v '^#' FILE)``."""
    size = short(row["settable_page_bytes"])
    backed, memory = uses_hugetlb(row, "QEMU"), guest_memory(row)
    lines, options = [heading(row), *not_set(row, "QEMU")], []
    if backed:
        # systemd mounts the default size, 2 MiB, at /dev/hugepages.
        path = f"/dev/hugepages{'' if size == '2M' else size}"
        lines += [
            "Append to the guest's command line: qemu-system-... $(grep -v '^#' FILE)",
            f"The host needs free {size} pages for all of the guest's memory (--emit hugetlb), and",
            f"  mount -t hugetlbfs -o pagesize={size} none {path}",
            "unless it is mounted. If the command line has -object memory-backend-..., replace",
            f"each with memory-backend-memfd,hugetlb=on,hugetlbsize={size}.",
        ]
        options.append(f"-mem-path {path}")
    if memory:
        lines.append("Sets the guest's memory size; without --set-memory it does not change.")
        options.append(f"-m {memory // MIB}M")
    if not options:
        lines.append("4 KiB is the default of QEMU: nothing to set.")
    return config(lines, options)
