"""A wrapper that runs a program on the cores and nodes of a ``numa plan``, with ``numactl``.

Sets: ``--cpunodebind`` to the plan's cores, and ``--membind``, ``--interleave``,
``--weighted-interleave`` or ``--preferred-many``. For ``alius`` (the mode of paper 004),
``--preferred-many`` with all DRAM nodes: DRAM first, then the rest in the kernel's fallback order,
without interleaving.

Cannot: add memory or set weights (first run the scripts of the emitters ``daxctl`` and
``weighted-interleave``); place the kernel's own pages; set memory mode, which is a firmware
setting.

Do not use: ``--weighted-interleave`` with numactl before 2.0.18 (Debian 12 has 2.0.16) or Linux
before 6.9; ``--preferred-many`` with Linux before 5.15. numactl then fails.
"""

from __future__ import annotations

from nearfar.declared import numa_plan
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import heading, node_list, refuse_memory_mode
from nearfar.emit._shell import script

SUMMARY = "a wrapper that runs a program with numactl"
SUFFIX = ".sh"

_OPTION = {
    "local": "--membind",
    "kmem-dax": "--membind",
    "interleave": "--interleave",
    "weighted-interleave": "--weighted-interleave",
    "preferred-many": "--preferred-many",
}


def emit(row: numa_plan.Row) -> str:
    """A shell script that runs its arguments."""
    refuse_memory_mode(row)
    nodes = node_list(row["dram_nodes"] if row["mode"] == "alius" else row["nodes"])
    option = _OPTION.get(row["mode"], "--preferred-many")
    # Without nodes, as for `local` and `kmem-dax`, the kernel's default policy applies.
    policy = f"{option}={nodes}" if nodes else "--localalloc"
    command = f'exec numactl --cpunodebind={row["from"]} {policy} -- "$@"'
    return script([heading(row)], [command])
