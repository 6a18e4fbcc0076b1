"""Shell lines that turn persistent or CXL memory into system memory until the next boot.

Sets: ``daxctl reconfigure-device --mode=system-ram`` for every dax device on a node of the plan;
in mode ``alius`` (paper 004) with ``--no-movable``, so that the kernel can allocate there too.

Cannot: create the devices' namespaces or regions (``ndctl``, ``cxl``); choose which programs use
the memory (``numactl``, ``weighted-interleave``); set memory mode, which is a firmware setting.

Do not use: if the devices hold data, which is lost.
"""

from __future__ import annotations

from nearfar.declared import numa_plan
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import heading, online_lines, refuse_memory_mode
from nearfar.emit._shell import script

SUMMARY = "daxctl commands that turn devices into system memory"
SUFFIX = ".sh"


def emit(row: numa_plan.Row) -> str:
    """A shell script, which may have no commands."""
    refuse_memory_mode(row)
    body = online_lines(row) or ["# This mode uses existing memory: nothing to add."]
    return script([heading(row)], body)
