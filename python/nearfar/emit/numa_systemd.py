"""A systemd unit that adds the plan's memory and sets its weights at each boot.

Sets: what ``daxctl`` and ``weighted-interleave`` set, before services start: what aliusM did in the
kernel, with nothing for a user to do afterwards.

Cannot: give the kernel's start-up the memory, which comes later; interleave the kernel's own pages;
make a program use it in another order than fallback's, for which start it with ``numactl``.

Do not use: beside another unit or ``/etc/daxctl.conf.d`` entry that takes the same devices; in
memory mode, where nothing is to be added.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import heading, online, refuse_memory_mode, weight_lines
from nearfar.emit._shell import exec_line
from nearfar.errors import NearfarError

SUMMARY = "a unit that adds memory and sets weights at boot"
SUFFIX = ".service"


def emit(row: Row) -> str:
    """A oneshot unit."""
    refuse_memory_mode(row)
    lines = [*online(row), *weight_lines(row)]
    if not lines:
        raise NearfarError(f"{row['vm']}: {row['mode']} needs no unit; emit numactl instead")
    text = [
        f"# {heading(row)}",
        "[Unit]",
        f"Description=Memory nodes for {row['vm']}",
        "DefaultDependencies=no",
        "After=local-fs.target systemd-udev-settle.service",
        "Before=basic.target",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        f"ExecStart={exec_line(lines)}",
        "",
        "[Install]",
        "WantedBy=basic.target",
    ]
    return "\n".join(text) + "\n"
