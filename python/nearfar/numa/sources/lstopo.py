"""The XML of ``lstopo --of xml`` (hwloc 2): sockets, nodes, distances, latency and bandwidth."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa import xml
from nearfar.numa.node import Node

SUMMARY = "lstopo --of xml"


def knows(path: Path, text: str) -> bool:
    """Whether it is hwloc's XML."""
    return "<topology" in text[:2000] and "hwloc" in text[:2000]


def read(path: Path, text: str) -> list[Node]:
    """Read every node that has memory."""
    root = xml.root(path, text, "lstopo")
    distances = _distances(root)
    speeds = _speeds(root)
    found: list[Node] = []
    _walk(root, None, path, distances, speeds, found)
    if not found:
        raise NearfarError(f"{path}: holds no NUMANode; save the whole topology")
    return found


def _walk(
    element: ET.Element,
    socket: int | None,
    path: Path,
    distances: dict[int, dict[int, int]],
    speeds: dict[str, dict[str, int]],
    found: list[Node],
) -> None:
    if element.tag == "object" and element.get("type") == "Package":
        socket = xml.number(element.get("os_index"), path)
    if element.tag == "object" and element.get("type") == "NUMANode":
        number = xml.number(element.get("os_index"), path)
        size = xml.number(element.get("local_memory") or "0", path)
        cpus = _bits(element.get("cpuset") or "", path)
        answer = speeds.get(element.get("gp_index") or "", {})
        if size:
            found.append(
                Node(
                    node=number,
                    size=size,
                    source=f"lstopo ({path.name})",
                    kind=_kind(element, cpus),
                    cpus=cpus,
                    socket=socket,
                    distances=distances.get(number, {}),
                    read_latency=answer.get("ReadLatency") or answer.get("Latency"),
                    write_latency=answer.get("WriteLatency"),
                    read_bandwidth=_mega(answer.get("ReadBandwidth") or answer.get("Bandwidth")),
                    write_bandwidth=_mega(answer.get("WriteBandwidth") or answer.get("Bandwidth")),
                )
            )
    for child in element:
        _walk(child, socket, path, distances, speeds, found)


def _kind(element: ET.Element, cpus: int) -> str | None:
    """What hwloc found out about the node (``subtype``, ``DAXType``)."""
    said = {info.get("name"): info.get("value", "") for info in element.findall("info")}
    words = " ".join([element.get("subtype", ""), said.get("DAXType", "")]).lower()
    for word, kind in (("nvm", "pmem"), ("spm", "cxl"), ("cxl", "cxl"), ("dram", "dram")):
        if word in words:
            return kind
    return "dram" if cpus else None


def _distances(root: ET.Element) -> dict[int, dict[int, int]]:
    """The firmware's distances between nodes, by their numbers."""
    for table in root.iter("distances2"):
        if table.get("type") != "NUMANode" or table.get("indexing", "os") != "os":
            continue
        order = _words(table, "indexes")
        values = _words(table, "u64values")
        if order and len(values) == len(order) ** 2:
            width = len(order)
            return {
                node: dict(zip(order, values[at * width : (at + 1) * width], strict=True))
                for at, node in enumerate(order)
            }
    return {}


def _words(table: ET.Element, name: str) -> list[int]:
    texts = " ".join(part.text or "" for part in table.findall(name))
    return [int(word) for word in texts.split() if word.isdigit()]


def _speeds(root: ET.Element) -> dict[str, dict[str, int]]:
    """Best latency (ns) and bandwidth (MB/s) of each node, by its ``gp_index``."""
    found: dict[str, dict[str, int]] = {}
    for attribute in root.iter("memattr"):
        name = attribute.get("name", "")
        if not name.endswith(("Latency", "Bandwidth")):
            continue
        for value in attribute.findall("memattr_value"):
            text, target = value.get("value", ""), value.get("target_obj_gp_index", "")
            if not text.isdigit() or int(text) == 0:
                continue
            known = found.setdefault(target, {})
            best = min if name.endswith("Latency") else max
            known[name] = best(known.get(name, int(text)), int(text))
    return found


def _bits(mask: str, path: Path) -> int:
    """Bits set in a mask such as ``0x00000003,0xffffffff`` (an empty part is zero)."""
    try:
        return sum(int(part, 16).bit_count() for part in mask.split(",") if part.strip())
    except ValueError:
        raise NearfarError(f"{path}: {mask[:40]!r} is not a set of processors") from None


def _mega(value: int | None) -> int | None:
    return None if value is None else value * 1_000_000
