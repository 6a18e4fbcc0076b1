"""QEMU options to append to the command line that starts a guest.

Sets: for 2 MiB and larger ``-mem-path``, which takes the guest's memory, whatever its size, from
the host's hugetlbfs pages of that size; with ``--set-memory`` also ``-m``. All else stays.

Cannot: set a multi-size THP size: the host's ``sysfs`` setting does, as QEMU asks for transparent
huge pages for its guests' memory. Cannot set the guest's own page size: see ``kernel-cmdline``.

Do not use: where the guest's memory has backends of its own (``-machine memory-backend=``, ``-numa
node,memdev=``): QEMU refuses, and the comment says what those backends take. hugetlbfs where the
host should swap the guest, or has not reserved that many pages: QEMU then does not start.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._page import MIB, guest_memory, heading, large, short

SUMMARY = "QEMU options to append"
SUFFIX = ".args"
NEEDS = ("vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: Row) -> str:
    """Comment lines, then the options, one a line, for `qemu-system-... $(grep -v '^#' FILE)`."""
    size = short(int(row["settable_page_bytes"]))
    backed, memory = large(row, "QEMU"), guest_memory(row)
    lines, options = [heading(row)], []
    if backed:
        # systemd mounts the usual size, 2 MiB, at /dev/hugepages.
        path = f"/dev/hugepages{'' if size == '2M' else size}"
        lines += [
            "Append to the command line of the guest: qemu-system-... $(grep -v '^#' FILE)",
            f"The host needs free pages of {size} for all of its memory (--emit hugetlb), and",
            f"  mount -t hugetlbfs -o pagesize={size} none {path}",
            "if that is not mounted. Where the command line has -object memory-backend-..., give",
            f"each memory-backend-memfd,hugetlb=on,hugetlbsize={size} instead.",
        ]
        options.append(f"-mem-path {path}")
    if memory:
        lines.append("The guest gets this memory; without --set-memory it keeps its own.")
        options.append(f"-m {memory // MIB}M")
    if not options:
        lines.append("4 KiB is what QEMU gives: nothing to set.")
    return "\n".join([*(f"# {line}" for line in lines), *options]) + "\n"
