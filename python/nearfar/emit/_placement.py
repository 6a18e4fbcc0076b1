"""What emitters of placement share: which devices become memory, and the weights of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from nearfar.errors import NearfarError

Row = Mapping[str, Any]

#: Keys of a row of ``nearfar numa plan`` that emitters of placement read.
NEEDS: Final = ("vm", "mode", "from", "nodes", "weights", "dram_nodes", "far_nodes")
WEIGHTS: Final = "/sys/kernel/mm/mempolicy/weighted_interleave"
BLOCKS: Final = "/sys/devices/system/memory/auto_online_blocks"
#: Modes that need persistent or CXL memory to be system memory.
_ADDED: Final = ("kmem-dax", "alius", "interleave", "weighted-interleave", "preferred-many")


def heading(row: Row) -> str:
    """One line that says what is set."""
    return f"nearfar numa plan: {row['mode']} for {row['vm']}"


def numbers(values: Any) -> str:
    """``0,4`` of node numbers."""
    return ",".join(str(int(value)) for value in values)


def added(row: Row) -> list[int]:
    """Far nodes that must become system memory for the row's mode."""
    if row["mode"] not in _ADDED:
        return []
    far = [int(node) for node in row["far_nodes"]]
    asked = [int(node) for node in row["nodes"]]
    return [node for node in far if not asked or node in asked or row["mode"] == "preferred-many"]


def online(row: Row) -> list[str]:
    """Shell lines that make the devices behind those nodes system memory.

    ``alius`` means for the kernel as well: not movable.
    """
    nodes = added(row)
    if not nodes:
        return []
    movable = " --no-movable" if row["mode"] == "alius" else ""
    wanted = " ".join(map(str, nodes))
    return [
        # daxctl of 2023 and before gives up on Linux 6.12 when blocks come online by themselves.
        f"echo offline > {BLOCKS}",
        "for device in /sys/bus/dax/devices/dax*; do",
        '  [ -r "$device/target_node" ] || continue',
        f'  case " {wanted} " in *" $(cat "$device/target_node") "*)',
        f'    daxctl reconfigure-device --mode=system-ram{movable} "${{device##*/}}" ;;',
        "  esac",
        "done",
    ]


def weight_lines(row: Row) -> list[str]:
    """Shell lines that set the kernel's weights; none for other modes."""
    if row["mode"] != "weighted-interleave":
        return []
    pairs = zip(row["nodes"], row["weights"], strict=True)
    return [f"echo {int(weight)} > {WEIGHTS}/node{int(node)}" for node, weight in pairs]


def refuse_memory_mode(row: Row) -> None:
    """Memory mode is the firmware's: nothing in a running system sets it.

    Raises:
        NearfarError: the row's mode is memory mode.
    """
    if row["mode"] == "memory-mode":
        raise NearfarError(
            f"{row['vm']}: memory mode is set in firmware, not by this; run "
            "`ipmctl create -goal MemoryMode=100` and restart"
        )
