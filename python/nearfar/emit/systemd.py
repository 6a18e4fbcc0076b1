"""A systemd unit that sets this host's page sizes at each boot.

Sets: the settings of the emitter ``sysfs``, before VMs and services start (``sysinit.target``).
Stopping the unit restores the values from before its start.

Cannot: what ``sysfs`` cannot; set a size for one VM only.

Do not use: with another unit or tool that writes the same files (tuned, tmpfiles.d).
"""

from __future__ import annotations

from nearfar.emit._page import NEEDS as NEEDS
from nearfar.emit._page import PageRow, heading, setting_file, setting_lines, who_gets_pages
from nearfar.emit._shell import config, exec_line

SUMMARY = "a systemd unit that sets the page size at boot"
SUFFIX = ".service"


def emit(row: PageRow) -> str:
    """A oneshot unit."""
    path = setting_file(row)
    saved = "$RUNTIME_DIRECTORY/before"
    # Save the word in brackets of a list, or a number unchanged.
    save = f"sed 's/.*\\[\\(.*\\)\\].*/\\1/' {path} > {saved}"
    lines = [
        "[Unit]",
        f"Description=Page size for {row['vm']}",
        "DefaultDependencies=no",
        "After=local-fs.target",
        "Before=sysinit.target",
        f"ConditionPathExists={path}",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        "RuntimeDirectory=%N",
        f"ExecStart={exec_line([save, *setting_lines(row)])}",
        f"ExecStop={exec_line([f'cat {saved} > {path}'])}",
        "",
        "[Install]",
        "WantedBy=sysinit.target",
    ]
    return config([heading(row), *who_gets_pages(row)], lines)
