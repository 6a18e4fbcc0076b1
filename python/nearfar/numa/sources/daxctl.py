"""The JSON of ``daxctl list``: devices that are, or can become, nodes of system memory."""

from __future__ import annotations

import json
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa.json_text import is_json_with, mappings
from nearfar.numa.node import Node

SUMMARY = "daxctl list"


def knows(path: Path, text: str) -> bool:
    """Whether it is JSON that describes ``chardev``."""
    return is_json_with(text, "chardev")


def read(path: Path, text: str) -> list[Node]:
    """Read the node of every device; devices of one node add up."""
    nodes: dict[int, Node] = {}
    for device in mappings(path, text, SUMMARY, "chardev"):
        name = str(device["chardev"])[:40]
        number, size = device.get("target_node"), device.get("size")
        if not isinstance(number, int) or not isinstance(size, int) or number < 0 or size <= 0:
            raise NearfarError(f"{path}: {name} has no size and target_node; save it again")
        before = nodes[number].size if number in nodes else 0
        # Soft-reserved (hmem) and CXL devices have no persistent region above them.
        kind = "cxl" if "cxl" in json.dumps(device).lower() else "pmem"
        online = device.get("mode") == "system-ram"
        source = f"daxctl list ({path.name}: {name})"
        nodes[number] = Node(number, before + size, source, kind=kind, online=online)
    return list(nodes.values())
