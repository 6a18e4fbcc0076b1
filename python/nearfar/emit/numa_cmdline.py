"""Kernel parameters that go with a plan's mode.

Sets: ``page_alloc.shuffle=1`` in memory mode, so that no two programs share all their places in the
cache; ``memhp_default_state=offline`` where memory is added later, so that ``daxctl`` decides how;
``numa_balancing=disable`` where pages should stay where the plan put them.

Cannot: add memory, or change the order of nodes, which follows the firmware's distances.

Do not use: ``memhp_default_state=offline`` in a virtual machine whose memory is grown by hot-plug.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import added

SUMMARY = "kernel parameters for a mode of placement"
SUFFIX = ".cmdline"


def emit(row: Row) -> str:
    """A line of parameters."""
    if row["mode"] == "memory-mode":
        return "page_alloc.shuffle=1\n"
    words = ["memhp_default_state=offline"] if added(row) else []
    return " ".join([*words, "numa_balancing=disable"]) + "\n"
