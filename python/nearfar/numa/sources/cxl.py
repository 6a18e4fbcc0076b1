"""The JSON of ``cxl list -v``: memory devices, their sizes and the node each is near.

A device that is not yet memory has no node number of its own: each gets the next free one, as the
kernel would number it, after the node it hangs on.
"""

from __future__ import annotations

from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa.json_text import is_json_with, mappings
from nearfar.numa.node import Node

SUMMARY = "cxl list -v"
#: First number given to devices: above those of sockets, so that sources do not collide.
_FIRST = 64


def knows(path: Path, text: str) -> bool:
    """Whether it is JSON that describes ``memdev``."""
    return is_json_with(text, "memdev")


def read(path: Path, text: str) -> list[Node]:
    """Read a node for every memory device."""
    devices = {
        str(device["memdev"]): device
        for device in mappings(path, text, SUMMARY, "memdev")
        if "serial" in device or "host" in device
    }
    nodes = []
    for index, (name, device) in enumerate(sorted(devices.items())):
        sizes = [device.get(key) for key in ("ram_size", "pmem_size")]
        size = sum(part for part in sizes if isinstance(part, int))
        if size <= 0:
            raise NearfarError(f"{path}: {name[:40]} has no ram_size or pmem_size; save it again")
        host = device.get("numa_node")
        near = {host: 17} if isinstance(host, int) and host >= 0 else {}
        source = f"cxl list ({path.name}: {name[:40]})"
        number = _FIRST + index
        nodes.append(Node(number, size, source, kind="cxl", distances=near, online=False))
    return nodes
