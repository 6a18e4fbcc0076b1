"""A wrapper that runs a program on the plan's cores and nodes by ``numactl``.

Sets: ``--cpunodebind`` to the plan's cores, and ``--membind``, ``--interleave``,
``--weighted-interleave`` or ``--preferred-many``. For ``alius`` the latter with all DRAM nodes:
DRAM first, then the rest in the kernel's fallback order, which does not interleave it.

Cannot: add memory (``daxctl``) or set weights (``weighted-interleave``), both before; place the
kernel's own pages; set memory mode, which is firmware's.

Do not use: ``--weighted-interleave`` with numactl before 2.0.18 (Debian 12 has 2.0.16) or Linux
before 6.9; ``--preferred-many`` with Linux before 5.15. Each then ends with an error of numactl's.
"""

from __future__ import annotations

from nearfar.emit import Row
from nearfar.emit._placement import NEEDS as NEEDS
from nearfar.emit._placement import heading, numbers, refuse_memory_mode
from nearfar.emit._shell import script

SUMMARY = "a wrapper that runs a program by numactl"
SUFFIX = ".sh"

_OPTION = {
    "local": "--membind",
    "kmem-dax": "--membind",
    "interleave": "--interleave",
    "weighted-interleave": "--weighted-interleave",
    "preferred-many": "--preferred-many",
}


def emit(row: Row) -> str:
    """A shell script that runs its arguments."""
    refuse_memory_mode(row)
    nodes = numbers(row["dram_nodes"] if row["mode"] == "alius" else row["nodes"])
    option = _OPTION.get(str(row["mode"]), "--preferred-many")
    policy = f"{option}={nodes}" if nodes else "--localalloc"
    command = f'exec numactl --cpunodebind={int(row["from"])} {policy} -- "$@"'
    return script([heading(row)], [command])
