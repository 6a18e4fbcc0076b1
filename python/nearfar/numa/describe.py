"""Memory nodes as the kernel or firmware describes them, and a machine file made from them.

Values that a machine file needs and no source has are marked as assumptions, and
:func:`to_machine` lists them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nearfar.errors import NearfarError
from nearfar.numa.node import Node
from nearfar.numa.sources import read

#: Assumed nanoseconds per unit of distance if the firmware reports no latency (10 is local).
NS_PER_DISTANCE: Final = 10
#: Assumed bytes per second by kind, if the firmware reports no bandwidth.
ASSUMED_BANDWIDTH: Final = {"dram": 20_000_000_000, "cxl": 20_000_000_000, "pmem": 2_000_000_000}
#: If no source has the sockets, cores at this distance or more are on another socket.
_OTHER_SOCKET: Final = 20
#: Attributes of a node as seen from one initiator, and attributes that a later source may fill in.
_SPEEDS: Final = ("read_latency", "write_latency", "read_bandwidth", "write_bandwidth")
_FILLED: Final = ("kind", "socket", "distances", "cpus", "size", "seen", *_SPEEDS)


def describe(sources: Sequence[str | Path] = ()) -> list[Node]:
    """Read memory nodes from files or folders. The first source that has a value wins.

    Args:
        sources: ``/sys/devices/system/node`` (the default) or a copy of it, and the firmware's
            tables SRAT, SLIT, HMAT and NFIT.

    Raises:
        NearfarError: a source that is none of these, or is damaged.
    """
    known: dict[int, Node] = {}
    for source in sources or ["/sys/devices/system/node"]:
        for node in read(Path(source)):
            known[node.node] = _merged(known[node.node], node) if node.node in known else node
    known = {number: node for number, node in known.items() if node.size}
    if not known:
        what = "no memory node with a size in the given sources"
        raise NearfarError(f"numa import: {what}; add /sys/devices/system/node")
    sockets = _sockets(known)
    nodes = []
    for number, node in sorted(known.items()):
        kind = node.kind or ("dram" if node.cpus else "cxl")
        speeds: dict[str, Any] = {
            key: getattr(node, key) or _best(key, node.seen.values()) for key in _SPEEDS
        }
        nodes.append(replace(node, socket=sockets[number], kind=kind, **speeds))
    return nodes


def _best(key: str, views: Collection[Mapping[str, int]], worst: bool = False) -> int | None:
    """The best or worst value of ``key`` in ``views``, one per initiator; None if none has it."""
    values = [view[key] for view in views if key in view]
    if not values:
        return None
    return min(values) if key.endswith("latency") != worst else max(values)


def _merged(first: Node, second: Node) -> Node:
    """``first``, with values from ``second`` that it lacks."""
    filled: dict[str, Any] = {}
    for name in _FILLED:
        mine, other = getattr(first, name), getattr(second, name)
        known = mine is not None if name == "socket" else bool(mine)
        if not known and other is not None:
            filled[name] = other
    source = f"{first.source}, {second.source}" if filled else first.source
    return replace(first, **filled, source=source)


def _sockets(known: dict[int, Node]) -> dict[int, int]:
    """The socket of each node: the known one, else the socket of cores nearer than distance 20.

    A node without cores gets the socket of the nearest cores.
    """
    sockets: dict[int, int] = {}
    hosts = [known[number] for number in sorted(known) if known[number].cpus]
    for host in hosts:
        near = [
            other.node
            for other in hosts
            if other.node in sockets and host.distances.get(other.node, 255) < _OTHER_SOCKET
        ]
        new = max(sockets.values(), default=-1) + 1
        guess = sockets[near[0]] if near else new
        sockets[host.node] = guess if host.socket is None else host.socket
    for number, node in known.items():
        if number not in sockets:
            distances = {
                host.node: node.distances.get(host.node, host.distances.get(number, 255))
                for host in hosts
            }
            nearest = min(distances, key=lambda host: (distances[host], host), default=None)
            guess = 0 if nearest is None else sockets[nearest]
            sockets[number] = guess if node.socket is None else node.socket
    return sockets


def to_machine(nodes: Sequence[Node], name: str = "this machine") -> tuple[str, list[str]]:
    """The text of a machine file, and a list of its assumptions.

    Args:
        nodes: of :func:`describe`.
        name: of the machine, for the description.
    """
    assumed: list[str] = []
    position = {node.node: index for index, node in enumerate(nodes)}
    if sorted(position.values()) != sorted(position):
        assumed.append(
            "nodes are renumbered from 0: " + ", ".join(f"{n} -> {i}" for n, i in position.items())
        )
    rows = [[_distance(a, b, assumed) for b in nodes] for a in nodes]
    source = quoted(nodes[0].source)
    lines = [
        f"description = {quoted(f'{name}, as it describes itself')}",
        "",
        "[topology]",
        "nodes = [" + ", ".join(f'"node{node.node}"' for node in nodes) + "]",
        f"sockets = {{ value = {[node.socket or 0 for node in nodes]}, source = {source} }}",
        f"cpus = {{ value = {[node.cpus for node in nodes]}, source = {source} }}",
        f"distances = {{ value = {rows}, source = {source} }}",
    ]
    several = len({node.socket for node in nodes}) > 1
    for node in nodes:
        lines += ["", *_section(node, nodes, assumed, remote=several)]
    return "\n".join(lines) + "\n", assumed


def _section(node: Node, nodes: Sequence[Node], assumed: list[str], *, remote: bool) -> list[str]:
    lines = [
        f"[node.node{node.node}]",
        f'kind = "{node.kind}"',
        f'size = {{ value = "{node.size}B", source = {quoted(node.source)} }}',
        "",
        f"[node.node{node.node}.local]",
    ]
    hosts = [host for host in nodes if host.cpus]
    near = min((_distance(host, node, assumed=[]) for host in hosts), default=10)
    latency = node.read_latency or near * NS_PER_DISTANCE
    assumed_rate = ASSUMED_BANDWIDTH[node.kind or "dram"]

    def line(key: str, value: str, known: bool, how: str) -> str:
        if not known:
            assumed.append(f"node {node.node}: {key} {value}")
        source = node.source if known else f"assumption: {how}"
        return f'{key} = {{ value = "{value}", source = {quoted(source)} }}'

    how = f"{NS_PER_DISTANCE} ns per unit of distance, as the firmware reports no latency"
    lines.append(line("read_latency", f"{latency}ns", node.read_latency is not None, how))
    if node.write_latency is not None:
        lines.append(line("write_latency", f"{node.write_latency}ns", known=True, how=""))
    for key in ("read_bandwidth", "write_bandwidth"):
        known = getattr(node, key)
        rate = f"{known or assumed_rate}B/s"
        how = f"usual for {node.kind}, as the firmware reports no bandwidth"
        lines.append(line(key, rate, known is not None, how))
    if remote:
        others = [host for host in hosts if host.socket != node.socket]
        far = min((_distance(host, node, assumed=[]) for host in others), default=near)
        views = [node.seen.get(host.node, {}) for host in others]
        known = _best("read_latency", views, worst=True)
        remote_latency = known or round(latency * max(far / near, 1.0))
        lines += ["", f"[node.node{node.node}.remote]"]
        how = "the local latency in proportion to distance; sysfs has none from other sockets"
        lines.append(line("read_latency", f"{remote_latency}ns", known is not None, how))
        for key in _SPEEDS[1:]:
            value = _best(key, views, worst=True)
            if value is not None:
                unit = "ns" if "latency" in key else "B/s"
                lines.append(line(key, f"{value}{unit}", known=True, how=""))
    return lines


def _distance(a: Node, b: Node, assumed: list[str]) -> int:
    """Distance from ``a`` to ``b``; 20 if unknown."""
    if a.node == b.node:
        return 10
    distance = a.distances.get(b.node) or b.distances.get(a.node)
    if distance is None:
        assumed.append(f"distance {a.node} to {b.node}: 20")
        return 20
    # A machine file has 10 for a node itself, and more for others.
    return max(distance, 11)


def quoted(text: str) -> str:
    """A TOML basic string."""
    safe = "".join(c if c.isprintable() and c not in '"\\' else "?" for c in text)
    return f'"{safe}"'
