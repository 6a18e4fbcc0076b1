"""Shell lines that set this host's page sizes through sysfs until the next boot.

Sets: for multi-size THP and THP (2 MiB), the setting of the row's page size
(``hugepages-64kB/enabled``) to ``madvise`` if it is off. Programs that request such pages, as QEMU
does for guest memory, then get them. For hugetlbfs: reserves pages until enough are free for the
row's memory. Sizes already allowed and pages already reserved stay. For 4 KiB: a THP setting of
``always`` becomes ``madvise``, so that only programs that request larger pages get them.

Cannot: set a base page (arm64 16 and 64 KiB are kernel builds); choose a size for one VM only,
because the setting is per host; guarantee the size of a fault: mTHP falls back to 4 KiB if memory
is fragmented, and reclaim may split pages.

Do not use: on a host whose VMs were advised different sizes, unless all of them may be allowed;
before Linux 6.8 (no mTHP).
"""

from __future__ import annotations

from nearfar.emit._page import NEEDS as NEEDS
from nearfar.emit._page import PageRow, heading, setting_lines, who_gets_pages
from nearfar.emit._shell import script

SUMMARY = "shell lines that set the page size in sysfs"
SUFFIX = ".sh"


def emit(row: PageRow) -> str:
    """A shell script for a row of ``nearfar advise`` or ``nearfar size``."""
    return script([heading(row), *who_gets_pages(row)], setting_lines(row))
