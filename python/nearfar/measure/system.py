"""What the kernel and the processor report about this machine."""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

from nearfar import _engine
from nearfar.errors import NearfarError
from nearfar.numa.describe import describe
from nearfar.numa.node import Node
from nearfar.numa.sources.sysfs import numbers_of, text_of
from nearfar.units import clean, size

_MEASURED: Final = "Measured on "
_CACHES: Final = {("1", "Data"): "l1d", ("1", "Unified"): "l1d", ("1", "Instruction"): "l1i"}


class Entries(TypedDict):
    """Entries of a TLB; ``ways`` is None if it is fully associative."""

    entries: int
    ways: int | None


class TlbLevel(TypedDict):
    """One level of TLB: entries for small and for large pages; None: all share ``small``."""

    small: Entries
    large: Entries | None


class CpuidCache(TypedDict):
    """One cache; ``instruction``: whether it holds only instructions."""

    level: int
    instruction: bool
    size: int
    ways: int | None
    line: int


class Processor(TypedDict):
    """What ``cpuid`` reports (crates/measure/src/cpuid.rs).

    ``first`` and ``second``: levels of the data TLB; ``instruction``: the instruction TLB.
    """

    vendor: str
    family: int
    model: int
    hypervisor: bool
    caches: list[CpuidCache]
    first: TlbLevel | None
    instruction: TlbLevel | None
    second: TlbLevel | None


@dataclass(frozen=True)
class Cache:
    """One level of cache.

    Attributes:
        size: bytes.
        ways: of a set; None if it is fully associative.
        line: bytes.
        cores: number of cores that share it.
        source: of these values.
    """

    size: int
    ways: int | None
    line: int
    cores: int
    source: str


@dataclass(frozen=True)
class System:
    """Properties of this machine that need no measurement.

    Attributes:
        model: the processor's name.
        release: of the kernel.
        memory: bytes of all nodes.
        available: bytes that can be used without swapping.
        cpus: logical processors that this process may use.
        cores: per socket.
        sockets: their number.
        one_per_core: the first of ``cpus`` on each core.
        caches: by name, ``l1d`` first.
        nodes: memory nodes.
        node_cpus: the ``cpus`` of each node, by its number.
        levels: number of page-table levels; None if the kernel does not report it.
        processor: None on architectures without ``cpuid``.
    """

    model: str
    release: str
    memory: int
    available: int
    cpus: tuple[int, ...]
    cores: int
    sockets: int
    one_per_core: frozenset[int]
    caches: dict[str, Cache]
    nodes: list[Node]
    node_cpus: dict[int, tuple[int, ...]]
    levels: int | None
    processor: Processor | None

    def measured(self, when: str) -> str:
        """The description for this machine's file: processor, memory, kernel, date."""
        return f"{_MEASURED}{self.model}, {len(self.cpus)} cpus{self._memory}{self.release}, {when}"

    def is_of(self, description: str) -> bool:
        """Whether a description is of this machine, regardless of the usable processors."""
        return description.startswith(f"{_MEASURED}{self.model}, ") and self._memory in description

    @property
    def _memory(self) -> str:
        """The memory size in a description."""
        return f", {size(self.memory)}, Linux "

    @property
    def is_virtual(self) -> bool:
        """Whether ``cpuid`` reports a hypervisor."""
        return bool(self.processor and self.processor["hypervisor"])


def elsewhere(description: str) -> bool:
    """Whether the description of a machine file is of a measurement of another machine."""
    return description.startswith(_MEASURED) and not read().is_of(description)


def read(root: Path = Path("/")) -> System:
    """Read ``/proc`` and ``/sys`` below ``root``, and ``cpuid``.

    Raises:
        NearfarError: ``/proc`` is not mounted.
    """
    info = text_of(root / "proc/cpuinfo")
    meminfo = re.findall(r"^(\w+):\s+(\d+) kB", text_of(root / "proc/meminfo"), re.M)
    memory = {name: int(kib) * 1024 for name, kib in meminfo}
    if "MemTotal" not in memory:
        raise NearfarError(f"{root / 'proc/meminfo'}: no MemTotal; mount /proc", 3)
    folder = root / "sys/devices/system/cpu"
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    core_ids = {cpu: _core(folder, cpu) for cpu in _present(folder) or cpus}
    cores, sockets = len(set(core_ids.values())), len({socket for socket, _ in core_ids.values()})
    processor: Processor | None = json.loads(_engine.measure_processor() or "null")
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", info, re.MULTILINE)
    virtual = re.search(r"(\d+) bits virtual", info)
    return System(
        model=clean(model[1].strip() if model else platform.machine()),
        release=clean(os.uname().release),
        memory=memory["MemTotal"],
        available=min([memory.get("MemAvailable", memory["MemTotal"]), *_limits(root)]),
        cpus=cpus,
        cores=max(cores // sockets, 1),
        sockets=sockets,
        one_per_core=frozenset(
            {core_ids.get(cpu, ("", str(cpu))): cpu for cpu in cpus[::-1]}.values()
        ),
        caches=_caches(folder, cpus[0], core_ids) or _of_cpuid(processor),
        nodes=_nodes(root, memory["MemTotal"], cpus),
        node_cpus=_node_cpus(root, cpus),
        levels={48: 4, 57: 5}.get(int(virtual[1])) if virtual else None,
        processor=processor,
    )


def _present(folder: Path) -> list[int]:
    names = [re.fullmatch(r"cpu(\d+)", child.name) for child in folder.glob("cpu[0-9]*")]
    # A processor that is offline has no topology.
    return [int(name[1]) for name in names if name and (folder / name[0] / "topology").is_dir()]


def _core(folder: Path, cpu: int) -> tuple[str, str]:
    """Socket and core of a processor; if unknown, socket 0 and its own core."""
    files = folder / f"cpu{cpu}" / "topology"
    core = text_of(files / "core_cpus_list") or text_of(files / "thread_siblings_list") or str(cpu)
    return text_of(files / "physical_package_id") or "0", core


def _caches(folder: Path, cpu: int, core_ids: dict[int, tuple[str, str]]) -> dict[str, Cache]:
    caches = {}
    for index in sorted((folder / f"cpu{cpu}" / "cache").glob("index*")):
        level, kind = text_of(index / "level"), text_of(index / "type")
        size = re.fullmatch(r"(\d+)K", text_of(index / "size"))
        ways = text_of(index / "ways_of_associativity")
        line = text_of(index / "coherency_line_size")
        if not (level and size and line.isdigit() and int(line)):
            continue
        shared = numbers_of(text_of(index / "shared_cpu_list")) or [cpu]
        name = _CACHES.get((level, kind), f"l{level}")
        cores = len({core_ids.get(other, ("", str(other))) for other in shared})
        associative = int(ways) if ways.isdigit() and int(ways) else None
        caches[name] = Cache(int(size[1]) * 1024, associative, int(line), cores, str(folder))
    return caches


def _of_cpuid(processor: Processor | None) -> dict[str, Cache]:
    """The caches if the kernel does not report them; assumes that cores do not share any."""
    caches = {}
    for cache in processor["caches"] if processor else []:
        level = cache["level"]
        name = "l1i" if cache["instruction"] else "l1d" if level == 1 else f"l{level}"
        caches[name] = Cache(cache["size"], cache["ways"], cache["line"], 1, "cpuid")
    return caches


def _nodes(root: Path, total: int, cpus: tuple[int, ...]) -> list[Node]:
    folder = root / "sys/devices/system/node"
    if (folder / "node0").is_dir():
        return describe([folder])
    # A kernel without NUMA has one node, which is not in sysfs.
    return [Node(0, total, "/proc/meminfo", "dram", len(cpus), 0)]


def _node_cpus(root: Path, cpus: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    folder = root / "sys/devices/system/node"
    by_node = {}
    for node in folder.glob("node[0-9]*"):
        ours = set(numbers_of(text_of(node / "cpulist"))) & set(cpus)
        by_node[int(node.name[4:])] = tuple(sorted(ours))
    return by_node or {0: cpus}


def _limits(root: Path) -> list[int]:
    """Bytes that this process may still use under the limits of its control groups."""
    remaining = []
    for line in text_of(root / "proc/self/cgroup").splitlines():
        # hierarchy:controllers:path; version 2 has no controllers.
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            folder, limit_file, used_file = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            folder = root / "sys/fs/cgroup/memory"
            limit_file, used_file = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        # In a container, `folder` may be the process's group itself, without `path` below it.
        for group in (folder / path.lstrip("/"), folder):
            limit, used = text_of(group / limit_file), text_of(group / used_file)
            if limit.isdigit() and used.isdigit():
                remaining.append(max(int(limit) - int(used), 0))
    return remaining
