"""Shell lines that set interleave weights through sysfs until the next boot.

Sets: ``/sys/kernel/mm/mempolicy/weighted_interleave/nodeN`` (Linux 6.9) for the plan's nodes.

Cannot: choose which programs interleave, which is a program's memory policy (``numactl``). Writing
a weight turns off ``auto`` (Linux 6.16), which derives weights from the firmware's bandwidths.

Do not use: for two programs that need different weights, which are per host.
"""

from __future__ import annotations

from nearfar.declared import numa_plan
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import heading, weight_lines
from nearfar.emit._shell import script
from nearfar.errors import NearfarError

SUMMARY = "shell lines that set interleave weights"
SUFFIX = ".sh"


def emit(row: numa_plan.Row) -> str:
    """A shell script."""
    lines = weight_lines(row)
    if not lines:
        raise NearfarError(f"{row['vm']}: {row['mode']} has no weights; use --emit numactl instead")
    return script([heading(row)], lines)
