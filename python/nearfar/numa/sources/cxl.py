"""The JSON of ``cxl list -v``: memory devices, their sizes and the node each is near.

A device that is not yet memory has no node number of its own: each gets the next free one, as the
kernel would number it, after the node it hangs on.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.numa.node import Node

SUMMARY = "cxl list -v"
#: First number given to devices: above those of sockets, so that sources do not collide.
_FIRST = 64


def knows(path: Path, text: str) -> bool:
    """Whether it is JSON that describes ``memdev``."""
    return text.lstrip()[:1] in "[{" and '"memdev"' in text


def read(path: Path, text: str) -> list[Node]:
    """Read a node for every memory device."""
    try:
        listed = json.loads(text)
    except json.JSONDecodeError as error:
        raise NearfarError(f"{path}: not JSON ({error}); save `cxl list -v` again") from None
    devices = {str(device["memdev"]): device for device in _devices(listed)}
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


def _devices(listed: Any) -> list[dict[str, Any]]:
    """Every mapping with ``memdev`` and sizes, however buses and ports are nested."""
    if isinstance(listed, list):
        return [device for item in listed for device in _devices(item)]
    if isinstance(listed, dict):
        own = [listed] if "memdev" in listed and ("serial" in listed or "host" in listed) else []
        return own + [device for item in listed.values() for device in _devices(item)]
    return []
