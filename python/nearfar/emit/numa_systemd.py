"""A systemd unit that adds the memory of a ``numa plan`` and sets its weights at each boot.

Sets: the settings of ``daxctl`` and ``weighted-interleave``, before services start.

Cannot: add the memory before the kernel has booted; interleave the kernel's own pages; choose
another order of nodes than the kernel's fallback order: start the program with ``numactl``.

Do not use: with another unit or ``/etc/daxctl.conf.d`` entry for the same devices; in memory mode,
which has nothing to add.
"""

from __future__ import annotations

from nearfar.declared import numa_plan
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import heading, online_lines, refuse_memory_mode, weight_lines
from nearfar.emit._shell import config, exec_line
from nearfar.errors import NearfarError

SUMMARY = "a systemd unit that adds memory nodes and sets interleave weights at boot"
SUFFIX = ".service"


def emit(row: numa_plan.Row) -> str:
    """A oneshot unit."""
    refuse_memory_mode(row)
    lines = [*online_lines(row), *weight_lines(row)]
    if not lines:
        raise NearfarError(f"{row['vm']}: {row['mode']} needs no unit; use --emit numactl instead")
    text = [
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
    return config([heading(row)], text)
