"""The kernel's description, ``/sys/devices/system/node``, or a copy of that folder.

Latency and bandwidth are those of the nearest processors (``access1``). Before Linux 5.10 there is
only ``access0``, whose best initiators may be devices.
"""

from __future__ import annotations

import re
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa.node import Node


def knows(path: Path) -> bool:
    """Whether a folder has folders such as ``node0``."""
    return bool(_nodes(path))


def read(path: Path) -> list[Node]:
    """Read every node that has memory."""
    numbers = {number for number, _ in _nodes(path)}
    nodes = []
    for number, folder in _nodes(path):
        size = _size(folder)
        if size == 0:
            continue
        cpus = numbers_of(text_of(folder / "cpulist"))
        row = [int(word) for word in text_of(folder / "distance").split() if word.isdigit()]
        distances = dict(zip(sorted(numbers), row, strict=False))
        best = folder / "access1" / "initiators"
        if not best.is_dir():
            best = folder / "access0" / "initiators"
        nodes.append(
            Node(
                node=number,
                size=size,
                source=str(path),
                kind="dram" if cpus else _kind(path, number),
                cpus=len(cpus),
                socket=_socket(path, cpus),
                distances=distances,
                read_latency=_number(best / "read_latency"),
                write_latency=_number(best / "write_latency"),
                read_bandwidth=_mega(_number(best / "read_bandwidth")),
                write_bandwidth=_mega(_number(best / "write_bandwidth")),
            )
        )
    return nodes


def _nodes(path: Path) -> list[tuple[int, Path]]:
    folders = [(re.fullmatch(r"node(\d+)", child.name), child) for child in path.iterdir()]
    return sorted((int(match[1]), child) for match, child in folders if match and child.is_dir())


def text_of(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = text_of(path)
    return int(text) if text.isdigit() and int(text) > 0 else None


def _mega(value: int | None) -> int | None:
    """Bytes per second; the kernel reports MB/s."""
    return None if value is None else value * 1_000_000


def _size(folder: Path) -> int:
    match = re.search(r"MemTotal:\s*(\d+) kB", text_of(folder / "meminfo"))
    if not match:
        raise NearfarError(f"{folder / 'meminfo'}: no MemTotal; copy the folder again")
    return int(match[1]) * 1024


def numbers_of(text: str) -> list[int]:
    """The numbers of a list such as ``0-3,8``; a range is limited, as the file may be damaged."""
    numbers: list[int] = []
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        numbers += range(int(first), min(int(last or first), int(first) + 65536) + 1)
    return numbers


def _socket(path: Path, cpus: list[int]) -> int | None:
    """Package of the first processor, from ``../cpu``."""
    if not cpus:
        return None
    package = path.parent / "cpu" / f"cpu{cpus[0]}" / "topology" / "physical_package_id"
    text = text_of(package)
    return int(text) if text.isdigit() else None


def _kind(path: Path, number: int) -> str | None:
    """The kind of a node without cores, from its DAX device."""
    # This parent of ``/sys/devices/system/node`` is ``/sys``.
    devices = path.parents[2] / "bus" / "dax" / "devices" if len(path.parents) > 2 else path
    for device in sorted(devices.glob("dax*")) if devices.is_dir() else []:
        if text_of(device / "target_node") == str(number):
            return "cxl" if "cxl" in str(device.resolve()) else "pmem"
    return None
