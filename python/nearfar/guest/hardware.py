"""The emulated machine of a guest as QEMU options: architecture, memory nodes, latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nearfar.errors import NearfarError


@dataclass(frozen=True)
class Architecture:
    """A processor architecture.

    Attributes:
        debian: its name in Debian.
        qemu: the emulator, and its package.
        machine: QEMU's machine and processor.
        console: the kernel's name of the first serial port.
        groups: QEMU's name for groups of cores in a socket.
        has_latencies: whether the kernel can read latencies (HMAT).
    """

    debian: str
    qemu: tuple[str, str]
    machine: tuple[str, str]
    console: str
    groups: str
    has_latencies: bool

    @property
    def kernels(self) -> tuple[str, ...]:
        """Debian's kernels for virtual machines; 6.12 is preferred."""
        return f"linux-image-6.12-cloud-{self.debian}", f"linux-image-cloud-{self.debian}"


ARCHITECTURES: Final = {
    "x86_64": Architecture(
        debian="amd64",
        qemu=("qemu-system-x86_64", "qemu-system-x86"),
        machine=("q35", "max"),
        console="ttyS0",
        groups="dies",
        has_latencies=True,
    ),
    # No HMAT: without UEFI, an arm64 kernel reads no ACPI tables; with it, Linux 6.12 takes QEMU's
    # flash for memory without a node, and disables NUMA.
    "aarch64": Architecture(
        debian="arm64",
        qemu=("qemu-system-aarch64", "qemu-system-arm"),
        machine=("virt", "neoverse-n1"),
        console="ttyAMA0",
        groups="clusters",
        has_latencies=False,
    ),
}


@dataclass(frozen=True)
class Node:
    """A memory node.

    Attributes:
        memory: bytes at boot; 0 for a node whose memory is hot-plugged.
        cpus: number of processors; nodes with processors must have the same number.
        socket: its socket.
        added: bytes of a hot-pluggable DIMM (``pc-dimm``), which ``memory`` does not include.
    """

    memory: int
    cpus: int = 0
    socket: int = 0
    added: int = 0


@dataclass(frozen=True)
class Link:
    """Latency and bandwidth from a node's processors to the memory of a node, for HMAT.

    Attributes:
        latency: nanoseconds of an access.
        bandwidth: bytes per second, or None.
    """

    latency: int
    bandwidth: int | None = None


@dataclass(frozen=True)
class Hardware:
    """The memory nodes of a guest.

    Attributes:
        nodes: by number; the first has processors, and the kernel boots on it.
        distances: between all nodes, for SLIT; if empty, 10 (local) and 20.
        links: by node with processors and node with memory; if empty there is no HMAT.
    """

    nodes: Sequence[Node]
    distances: Sequence[Sequence[int]] = ()
    links: Mapping[tuple[int, int], Link] = field(default_factory=dict)

    @property
    def memory(self) -> int:
        """Bytes of all nodes at boot."""
        return sum(node.memory for node in self.nodes)

    def options(self, architecture: Architecture) -> list[str]:
        """The options of QEMU.

        Raises:
            NearfarError: QEMU does not support such nodes.
        """
        # The nodes with processors.
        hosts = [number for number, node in enumerate(self.nodes) if node.cpus]
        cores = self.nodes[0].cpus
        sockets = sorted({self.nodes[host].socket for host in hosts})
        by_socket = [
            [host for host in hosts if self.nodes[host].socket == socket] for socket in sockets
        ]
        per_socket = len(by_socket[0]) if by_socket else 0
        if hosts[:1] != [0] or any(len(members) != per_socket for members in by_socket):
            raise NearfarError(
                "guest: QEMU needs processors on node 0, and equally many nodes "
                "with processors on each socket"
            )
        if any(self.nodes[host].cpus != cores for host in hosts):
            raise NearfarError("guest: QEMU needs the same number of processors on each node")
        if self.links and not architecture.has_latencies:
            why = f"{architecture.qemu[0]} cannot report latencies to Linux"
            raise NearfarError(f"guest: {why}; leave the latencies out or use x86_64")
        machine, processor = architecture.machine
        words = ["-machine", f"{machine}{',hmat=on' if self.links else ''}", "-cpu", processor]
        added = any(node.added for node in self.nodes)
        words += ["-m", f"{self.memory >> 20}M" + (",slots=64,maxmem=64G" if added else "")]
        groups = f"sockets={len(sockets)},{architecture.groups}={per_socket}"
        words += ["-smp", f"{cores * len(hosts)},{groups},cores={cores},threads=1"]
        for number, node in enumerate(self.nodes):
            near = min((self._distance(host, number), host) for host in hosts)[1]
            memory = f"id=m{number},size={node.memory >> 20}M"
            initiator = f",initiator={near}" if self.links else ""
            if node.memory:
                words += ["-object", f"memory-backend-ram,{memory}"]
            backend = f",memdev=m{number}" if node.memory else ""
            words += ["-numa", f"node,nodeid={number}{backend}{initiator}"]
            if node.added:
                words += ["-object", f"memory-backend-ram,id=a{number},size={node.added >> 20}M"]
                words += ["-device", f"pc-dimm,memdev=a{number},node={number}"]
        for socket, members in enumerate(by_socket):
            for group, host in enumerate(members):
                # The name in the singular: die-id or cluster-id.
                place = f",{architecture.groups[:-1]}-id={group}" if per_socket > 1 else ""
                words += ["-numa", f"cpu,node-id={host},socket-id={socket}{place}"]
        numbers = range(len(self.nodes))
        for a in numbers:
            for b in numbers:
                words += ["-numa", f"dist,src={a},dst={b},val={self._distance(a, b)}"]
        for (host, target), link in sorted(self.links.items()):
            entry = f"hmat-lb,initiator={host},target={target},hierarchy=memory"
            words += ["-numa", f"{entry},data-type=access-latency,latency={link.latency}"]
            if link.bandwidth:
                rate = f"bandwidth={link.bandwidth >> 20}M"
                words += ["-numa", f"{entry},data-type=access-bandwidth,{rate}"]
        return words

    def _distance(self, a: int, b: int) -> int:
        return self.distances[a][b] if self.distances else 10 if a == b else 20
