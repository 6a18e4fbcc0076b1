"""Shell lines that set this host's page sizes through sysfs, until the next boot.

Sets: multi-size THP of the row's size (``hugepages-64kB/enabled``), THP (2 MiB) or the number of
hugetlbfs pages. ``madvise``: for programs that ask, as QEMU does for its guests' memory.

Cannot: set a base page (arm64 16 and 64 KiB are kernel builds); choose for one VM only, since the
setting is the host's; make faults come in this unit: mTHP falls back to 4 KiB when memory is
fragmented, and reclaim may split.

Do not use: on a host whose VMs were advised different sizes without knowing that all of them will
be allowed; where the kernel is older than 6.8 (no mTHP).
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._page import heading, sysfs

SUMMARY = "shell lines that write sysfs"
SUFFIX = ".sh"
NEEDS = ("vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: Row) -> str:
    """A shell script; for the base page it says that there is nothing to set."""
    lines = [f"echo {value} > {path}" for path, value in sysfs(row)]
    body = lines or ["# 4 KiB is the default of the kernel: nothing to set."]
    return "\n".join(["#!/bin/sh", f"# {heading(row)}", "set -eu", *body]) + "\n"
