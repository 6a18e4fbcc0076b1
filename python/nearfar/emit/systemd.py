"""A systemd unit that sets this host's page sizes at each boot.

Sets: what ``sysfs`` sets, before VMs and services start (``sysinit.target``); stopping the unit
sets back what was there when it started.

Cannot: what ``sysfs`` cannot; give one VM what others do not get.

Do not use: together with another unit or tool that writes the same files (tuned, tmpfiles.d).
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._page import file, heading, sysfs
from nearfar.emit._shell import exec_line

SUMMARY = "a unit that writes sysfs at boot"
SUFFIX = ".service"
NEEDS = ("vm", "settable_page_bytes", "advised_page_bytes", "mechanism", "memory_bytes", "arch")


def emit(row: Row) -> str:
    """A oneshot unit; for the base page one that does nothing."""
    path = file(row)
    kept = "$RUNTIME_DIRECTORY/before"
    # Of a list the word in brackets, or the number as it is.
    keep = f"sed 's/.*\\[\\(.*\\)\\].*/\\1/' {path} > {kept}"
    conditions = [f"ConditionPathExists={path}"] if path else []
    service = ["ExecStart=/bin/true"]
    if path:
        service = [
            "RuntimeDirectory=%N",
            f"ExecStart={exec_line([keep, *sysfs(row)])}",
            f"ExecStop={exec_line([f'cat {kept} > {path}'])}",
        ]
    lines = [
        f"# {heading(row)}",
        "[Unit]",
        f"Description=Page size for {row['vm']}",
        "DefaultDependencies=no",
        "After=local-fs.target",
        "Before=sysinit.target",
        *conditions,
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        *service,
        "",
        "[Install]",
        "WantedBy=sysinit.target",
    ]
    return "\n".join(lines) + "\n"
