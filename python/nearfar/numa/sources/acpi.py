"""The firmware's tables: SRAT and NFIT (nodes), SLIT (distances), HMAT (latency and bandwidth).

Reads binary tables (``/sys/firmware/acpi/tables/HMAT``), and the hexadecimal lines of ``acpidump``
and ``iasl -d``; a text may have several tables. ACPI 6.5, sections 5.2.16, 5.2.17, 5.2.25 and
5.2.28. Only HMAT has latency and bandwidth from every socket. Only NFIT has persistent memory that
SRAT leaves out because it is not system memory. Domain numbers are used as node numbers, which is
correct if SRAT lists domains in order.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa.node import Node

_HEADER = 36
#: A line of a dump: offset, up to sixteen bytes, other text.
_LINE = re.compile(r"^\s*([0-9A-Fa-f]{4,16})h?:((?: [0-9A-Fa-f]{2}){1,16})(?:\s|$)", re.MULTILINE)
#: Attributes in HMAT by data type.
_HMAT_VALUES = {
    0: ("read_latency", "write_latency"),
    1: ("read_latency",),
    2: ("write_latency",),
    3: ("read_bandwidth", "write_bandwidth"),
    4: ("read_bandwidth",),
    5: ("write_bandwidth",),
}
#: GUID of a range of byte-addressable persistent memory in NFIT.
_PERSISTENT = uuid.UUID("66f0d379-b4f3-4074-ac43-0d3318b78cdb").bytes_le


def knows(text: str) -> bool:
    """Whether a file is one of the tables, or a dump that has one."""
    if _is_binary(text):
        return True
    return any(bytes.fromhex(m[2])[:4].decode("latin-1") in _TABLES for m in _LINE.finditer(text))


def read(path: Path, text: str) -> list[Node]:
    """Read the nodes of the tables; sizes are 0 if neither SRAT nor NFIT has them."""
    nodes: dict[int, Node] = {}
    tables = [path.read_bytes()] if _is_binary(text) else list(_dumped(path, text))
    # NFIT last, because it needs the sizes of SRAT.
    for table in sorted(tables, key=lambda table: table[:4] == b"NFIT"):
        name = table[:4].decode("latin-1")
        if name in _TABLES:
            _check(path, name, table)
            try:
                _TABLES[name](table, nodes, f"ACPI {name} ({path.name})")
            except (struct.error, IndexError):
                raise _cut(path, name) from None
    return list(nodes.values())


def _is_binary(text: str) -> bool:
    """Whether a file is a binary table; output of ``acpidump`` begins with ``SRAT @``."""
    return text[:4] in _TABLES and text[4:7] != " @ "


def _dumped(path: Path, text: str) -> Iterator[bytes]:
    """The tables of a dump; each starts at offset 0."""
    table = bytearray()
    for match in _LINE.finditer(text):
        offset = int(match[1], 16)
        if offset == 0 and table:
            yield bytes(table)
            table.clear()
        if offset != len(table):
            raise NearfarError(f"{path}: a line is missing before offset {match[1]}; dump it again")
        table += bytes.fromhex(match[2])
    yield bytes(table)


def _check(path: Path, name: str, table: bytes) -> None:
    if len(table) < _HEADER or struct.unpack_from("<I", table, 4)[0] != len(table):
        raise _cut(path, name)
    if sum(table) % 256:
        raise NearfarError(f"{path}: {name} has a wrong checksum; dump it again")


def _cut(path: Path, name: str) -> NearfarError:
    return NearfarError(f"{path}: {name} does not have the length that it states; dump it again")


def _node(nodes: dict[int, Node], number: int, source: str) -> Node:
    return nodes.setdefault(number, Node(number, 0, source))


def _change(nodes: dict[int, Node], number: int, source: str, **values: object) -> None:
    nodes[number] = replace(_node(nodes, number, source), **values)  # type: ignore[arg-type]


def _srat(table: bytes, nodes: dict[int, Node], source: str) -> None:
    """Processors and memory of each domain."""
    at = _HEADER + 12
    while at < len(table):
        kind, length = struct.unpack_from("<BB", table, at)
        if length < 2 or at + length > len(table):
            raise IndexError
        if kind == 1:
            domain, _, size, flags = struct.unpack_from("<I2x QQ 4xI", table[at + 2 : at + length])
            # Enabled, and not reserved for hot-plugged memory.
            if flags & 3 == 1 and size:
                known = _node(nodes, domain, source)
                memory_kind = "pmem" if flags & 4 else known.kind
                _change(nodes, domain, source, size=known.size + size, kind=memory_kind)
        elif kind in _PROCESSORS:
            domain, flags = _PROCESSORS[kind](table[at : at + length])
            if flags & 1:
                cpus = _node(nodes, domain, source).cpus + 1
                _change(nodes, domain, source, cpus=cpus, kind="dram")
        at += length


def _apic(entry: bytes) -> tuple[int, int]:
    low, flags, high = struct.unpack_from("<2xBxI x3s", entry)
    return low | int.from_bytes(high, "little") << 8, flags


#: Readers of the domain and the flags of entries for processors: APIC, x2APIC, GICC.
_PROCESSORS: dict[int, Callable[[bytes], tuple[int, ...]]] = {
    0: _apic,
    2: struct.Struct("<4xI4xI").unpack_from,
    3: struct.Struct("<2xI4xI").unpack_from,
}


def _nfit(table: bytes, nodes: dict[int, Node], source: str) -> None:
    """Persistent memory of each domain. SRAT may include it, so the larger size is used."""
    sizes: dict[int, int] = {}
    at = _HEADER + 4
    while at < len(table):
        kind, length = struct.unpack_from("<HH", table, at)
        if length < 4 or at + length > len(table):
            raise IndexError
        if kind == 0:
            flags, domain, form, size = struct.unpack_from("<6xH4xI16s8xQ", table[at : at + length])
            # Without the second flag the domain is not valid.
            if flags & 2 and form == _PERSISTENT:
                sizes[domain] = sizes.get(domain, 0) + size
        at += length
    for domain, size in sizes.items():
        known = _node(nodes, domain, source)
        kind = known.kind if known.cpus else "pmem"
        _change(nodes, domain, source, size=max(known.size, size), kind=kind)


def _slit(table: bytes, nodes: dict[int, Node], source: str) -> None:
    """Distances between domains."""
    (count,) = struct.unpack_from("<Q", table, _HEADER)
    rows = table[_HEADER + 8 :]
    if len(rows) != count * count:
        raise IndexError
    for domain in range(count):
        row = dict(enumerate(rows[domain * count : (domain + 1) * count]))
        _change(nodes, domain, source, distances=row)


def _hmat(table: bytes, nodes: dict[int, Node], source: str) -> None:
    """Latency and bandwidth from each domain with processors to each domain with memory."""
    revision, at = table[8], _HEADER + 4
    while at < len(table):
        kind, length = struct.unpack_from("<H2xI", table, at)
        if length < 8 or at + length > len(table):
            raise IndexError
        part = table[at : at + length]
        at += length
        # Only structures of the memory itself, not of a memory-side cache.
        if kind != 1 or part[8] & 0xF:
            continue
        names = _HMAT_VALUES.get(part[9], ())
        initiators, targets, base = struct.unpack_from("<II4xQ", part, 12)
        pairs, lists = initiators * targets, initiators + targets
        if pairs > length or len(part) != 32 + 4 * lists + 2 * pairs:
            raise IndexError
        domains = struct.unpack_from(f"<{lists}I", part, 32)
        entries = struct.unpack_from(f"<{pairs}H", part, 32 + 4 * lists)
        for index, entry in enumerate(entries):
            initiator, target = domains[index // targets], domains[initiators + index % targets]
            value = _value(entry, base, revision, latency=part[9] < 3)
            if value is not None:
                known = _node(nodes, target, source)
                seen = {host: dict(view) for host, view in known.seen.items()}
                seen.setdefault(initiator, {}).update(dict.fromkeys(names, value))
                _change(nodes, target, source, seen=seen)


def _value(entry: int, base: int, revision: int, *, latency: bool) -> int | None:
    """Nanoseconds or bytes per second, as Linux computes them; None if not provided."""
    if entry in (0, 0xFFFF):
        return None
    value = entry * base
    # Units: 0.1 ns and 0.1 MB/s in revision 1; 1 ps and 1 MB/s in revision 2.
    if revision < 2:
        value = -(-value // 10)
    elif latency:
        value = -(-value // 1000)
    return value if latency else value * 1_000_000


_TABLES = {"SRAT": _srat, "SLIT": _slit, "HMAT": _hmat, "NFIT": _nfit}
