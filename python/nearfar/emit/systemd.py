"""A systemd unit that sets this host's page sizes at each boot.

Sets: what ``sysfs`` sets, before VMs and services start (``sysinit.target``); stopping the unit
sets transparent sizes back to the kernel's defaults (2 MiB: ``inherit``, others: ``never``),
hugetlbfs to 0.

Cannot: what ``sysfs`` cannot; give one VM what others do not get.

Do not use: together with another unit or tool that writes the same files (tuned, tmpfiles.d).
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._page import heading, sysfs

SUMMARY = "a unit that writes sysfs at boot"
SUFFIX = ".service"
NEEDS = ("vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch")

#: What the kernel sets where nobody does.
_DEFAULT = {"mthp": "never", "thp": "inherit", "hugetlb": "0"}


def emit(row: Row) -> str:
    """A oneshot unit; for the base page one that does nothing."""
    settings = sysfs(row)
    start = [f"ExecStart=/bin/sh -c 'echo {value} > {path}'" for path, value in settings]
    back = _DEFAULT.get(str(row["mechanism"]), "")
    stop = [f"ExecStop=/bin/sh -c 'echo {back} > {path}'" for path, _ in settings]
    condition = [f"ConditionPathExists={path}" for path, _ in settings]
    lines = [
        f"# {heading(row)}",
        "[Unit]",
        f"Description=Page size for {row['vm']}",
        "DefaultDependencies=no",
        "After=local-fs.target",
        "Before=sysinit.target",
        *condition,
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        *(start or ["ExecStart=/bin/true"]),
        *stop,
        "",
        "[Install]",
        "WantedBy=sysinit.target",
    ]
    return "\n".join(lines) + "\n"
