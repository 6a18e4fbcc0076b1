"""Shell lines that make persistent or CXL memory system memory, until the next boot.

Sets: every dax device whose node the plan uses, by ``daxctl reconfigure-device --mode=system-ram``;
for ``alius`` with ``--no-movable``, so that the kernel's own pages may lie there too.

Cannot: create the namespaces or regions that the devices come from (``ndctl``, ``cxl``); choose who
uses the memory then (``numactl``, ``weighted-interleave``); set memory mode, which is firmware's.

Do not use: where the devices hold data; a reconfigured device is memory and nothing else.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import heading, online, refuse_memory_mode
from nearfar.emit._shell import script

SUMMARY = "shell lines that run daxctl"
SUFFIX = ".sh"


def emit(row: Row) -> str:
    """A shell script; where nothing is to be added it says so."""
    refuse_memory_mode(row)
    body = online(row) or ["# This mode uses the memory that is there: nothing to add."]
    return script([heading(row)], body)
