"""A memory node of a machine."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Node:
    """A memory node; unknown attributes are None.

    Attributes:
        node: the kernel's number.
        size: bytes.
        source: where the values are from, such as ``/sys/devices/system/node``.
        kind: ``dram``, ``pmem`` or ``cxl``.
        cpus: number of logical processors.
        socket: the number of its processor socket.
        distances: the distance to each node, by that node's number.
        read_latency, write_latency: nanoseconds from the nearest cores.
        read_bandwidth, write_bandwidth: bytes per second from the nearest cores.
        seen: those four values from each node with cores, by its number, if known.
    """

    node: int
    size: int
    source: str
    kind: str | None = None
    cpus: int = 0
    socket: int | None = None
    distances: dict[int, int] = field(default_factory=dict)
    read_latency: int | None = None
    write_latency: int | None = None
    read_bandwidth: int | None = None
    write_bandwidth: int | None = None
    seen: dict[int, dict[str, int]] = field(default_factory=dict)
