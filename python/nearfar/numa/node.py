"""A memory node of a machine, as it is described."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Node:
    """A memory node, as far as it is known.

    Attributes:
        node: the kernel's number.
        size: bytes.
        source: where that is from, such as ``/sys/devices/system/node``.
        kind: ``dram``, ``pmem`` or ``cxl``; None where nobody said.
        cpus: logical processors.
        socket: the package it belongs to; None where nobody said.
        distances: to each node by number.
        read_latency, write_latency: nanoseconds from the nearest cores.
        read_bandwidth, write_bandwidth: bytes a second from the nearest cores.
        seen: the same four from each node with cores that the firmware describes, by its number.
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
