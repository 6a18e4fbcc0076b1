"""Shared by emitters of memory placement: devices that become memory, and weights of nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from nearfar.declared import numa_plan
from nearfar.errors import NearfarError

#: Keys of a row of ``nearfar numa plan`` that emitters of placement read.
NEEDS: Final = ("vm", "mode", "from", "nodes", "weights", "dram_nodes", "far_nodes")
WEIGHTS: Final = "/sys/kernel/mm/mempolicy/weighted_interleave"
BLOCKS: Final = "/sys/devices/system/memory/auto_online_blocks"
#: Modes that need persistent or CXL memory to be system memory.
_ONLINE_MODES: Final = (
    "kmem-dax",
    "alius",
    "interleave",
    "weighted-interleave",
    "preferred-many",
)


def heading(row: numa_plan.Row) -> str:
    """A comment line with the mode and the VM."""
    return f"nearfar numa plan: {row['mode']} for {row['vm']}"


def node_list(nodes: Iterable[int]) -> str:
    """Node numbers as ``0,4``."""
    return ",".join(map(str, nodes))


def online_lines(row: numa_plan.Row) -> list[str]:
    """Shell lines that turn the far nodes of the row's mode into system memory.

    For ``alius`` (paper 004) this memory is not movable, so that the kernel can use it too.
    """
    if row["mode"] not in _ONLINE_MODES:
        return []
    # A mode without nodes uses all memory, and preferred-many falls back to any node.
    all_far = not row["nodes"] or row["mode"] == "preferred-many"
    nodes = [node for node in row["far_nodes"] if all_far or node in row["nodes"]]
    if not nodes:
        return []
    movable = " --no-movable" if row["mode"] == "alius" else ""
    wanted = " ".join(map(str, nodes))
    return [
        # daxctl of 2023 and earlier fails on Linux 6.12 if blocks are onlined automatically.
        f"echo offline > {BLOCKS}",
        "for device in /sys/bus/dax/devices/dax*; do",
        '  [ -r "$device/target_node" ] || continue',
        f'  case " {wanted} " in *" $(cat "$device/target_node") "*)',
        f'    daxctl reconfigure-device --mode=system-ram{movable} "${{device##*/}}" ;;',
        "  esac",
        "done",
    ]


def weight_lines(row: numa_plan.Row) -> list[str]:
    """Shell lines that set the kernel's interleave weights; empty for other modes."""
    if row["mode"] != "weighted-interleave":
        return []
    pairs = zip(row["nodes"], row["weights"], strict=True)
    return [f"echo {weight} > {WEIGHTS}/node{node}" for node, weight in pairs]


def refuse_memory_mode(row: numa_plan.Row) -> None:
    """Refuse memory mode, which only the firmware sets.

    Raises:
        NearfarError: the row's mode is memory mode.
    """
    if row["mode"] == "memory-mode":
        raise NearfarError(
            f"{row['vm']}: memory mode is a firmware setting; run "
            "`ipmctl create -goal MemoryMode=100` and restart"
        )
