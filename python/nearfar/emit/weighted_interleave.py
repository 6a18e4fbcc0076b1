"""Shell lines that set the weights of interleaving through sysfs, until the next boot.

Sets: ``/sys/kernel/mm/mempolicy/weighted_interleave/nodeN`` (Linux 6.9) for the plan's nodes.

Cannot: choose who interleaves; that is the program's policy (``numactl``). Linux 6.16 and later
also has ``auto``, which gives weights by the firmware's bandwidths: a weight written turns it off.

Do not use: for two programs that need different weights; they are the host's.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import heading, weight_lines
from nearfar.emit._shell import script
from nearfar.errors import NearfarError

SUMMARY = "shell lines that write the weights"
SUFFIX = ".sh"


def emit(row: Row) -> str:
    """A shell script."""
    lines = weight_lines(row)
    if not lines:
        raise NearfarError(f"{row['vm']}: {row['mode']} has no weights; emit numactl instead")
    return script([heading(row)], lines)
