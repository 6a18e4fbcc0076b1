"""The XML of ``virsh capabilities``: cells, sockets, distances and, with an HMAT, speeds."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa import xml
from nearfar.numa.node import Node

SUMMARY = "virsh capabilities"
#: Bytes of the units that libvirt may write.
_UNITS = {"b": 1, "bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_KEYS = {"read": ("read",), "write": ("write",), "access": ("read", "write")}


def knows(path: Path, text: str) -> bool:
    """Whether it is libvirt's XML."""
    return text.lstrip()[:500].find("<capabilities") >= 0


def read(path: Path, text: str) -> list[Node]:
    """Read every cell of the host that has memory."""
    whole = xml.root(path, text, "virsh")
    cells = whole.findall("./host/topology/cells/cell")
    if not cells:
        raise NearfarError(f"{path}: no cell of the host's topology; save virsh capabilities again")
    seen = _seen(whole, path)
    found = []
    for cell in cells:
        number = xml.number(cell.get("id"), path)
        memory = cell.find("memory")
        size = 0 if memory is None else _bytes(memory.text, memory.get("unit"), path)
        if size == 0:
            continue
        cpus = cell.findall("./cpus/cpu")
        sockets = [cpu.get("socket_id") for cpu in cpus if cpu.get("socket_id")]
        siblings = cell.findall("./distances/sibling")
        found.append(
            Node(
                node=number,
                size=size,
                source=f"virsh capabilities ({path.name})",
                kind="dram" if cpus else None,
                cpus=len(cpus),
                socket=xml.number(sockets[0], path) if sockets else None,
                distances={
                    xml.number(s.get("id"), path): xml.number(s.get("value"), path)
                    for s in siblings
                },
                seen=seen.get(number, {}),
            )
        )
    return found


def _seen(whole: ET.Element, path: Path) -> dict[int, dict[int, dict[str, int]]]:
    """Speeds of each cell from each other, nanoseconds and bytes a second."""
    found: dict[int, dict[int, dict[str, int]]] = {}
    for word in ("latency", "bandwidth"):
        for answer in whole.findall(f"./host/topology//interconnects/{word}"):
            if answer.get("cache") is not None:
                continue
            start, end = (
                xml.number(answer.get("initiator"), path),
                xml.number(answer.get("target"), path),
            )
            value = answer.get("value")
            number = (
                _bytes(value, answer.get("unit"), path)
                if word == "bandwidth"
                else xml.number(value, path)
            )
            for way in _KEYS.get(answer.get("type", ""), ()):
                found.setdefault(end, {}).setdefault(start, {})[f"{way}_{word}"] = number
    return found


def _bytes(text: str | None, unit: str | None, path: Path) -> int:
    scale = _UNITS.get(unit or "KiB")
    if scale is None:
        raise NearfarError(f"{path}: {str(unit)[:20]!r} is no unit of memory; save it again")
    return xml.number((text or "").strip(), path) * scale
