"""Shell lines that set this host's page sizes through sysfs, until the next boot.

Sets: multi-size THP of the row's size (``hugepages-64kB/enabled``) or THP (2 MiB) to ``madvise``
where they are off: for programs that ask, as QEMU does for its guests' memory; or so many hugetlbfs
pages that the row's memory fits into what is free. What is allowed or reserved already stays.

Cannot: set a base page (arm64 16 and 64 KiB are kernel builds); choose for one VM only, since the
setting is the host's; make faults come in this unit: mTHP falls back to 4 KiB when memory is
fragmented, and reclaim may split.

Do not use: on a host whose VMs were advised different sizes without knowing that all of them will
be allowed; where the kernel is older than 6.8 (no mTHP).
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._page import heading, sysfs
from nearfar.emit._shell import script

SUMMARY = "shell lines that write sysfs"
SUFFIX = ".sh"
NEEDS = ("vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: Row) -> str:
    """A shell script; for the base page it says that there is nothing to set."""
    body = sysfs(row) or ["# 4 KiB is the default of the kernel: nothing to set."]
    return script([heading(row)], body)
