"""Boots Debian's kernel under QEMU with a machine's memory nodes, and records where pages land.

The processor is emulated (TCG), so times mean nothing, but pages are placed by the real allocator.
Nodes are much smaller than the machine's; their numbers, sockets, distances, latencies and
bandwidths (SRAT, SLIT, HMAT) are those of the machine file.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nearfar import machine as machines
from nearfar import numa
from nearfar.errors import NearfarError
from nearfar.guest import ARCHITECTURES, Guest, Hardware, Link, Node
from nearfar.guest.packages import program

#: MiB of a DRAM node and of a far node; additional MiB of the boot node for the kernel; MiB of a
#: far node that are added later with ``added``: one block of memory hot-plug.
_DRAM, _FAR, _KERNEL, _PART = 128, 256, 128, 128
#: Linux's numbers of the policies (include/uapi/linux/mempolicy.h).
_POLICIES = {
    "default": 0,
    "bind": 2,
    "interleave": 3,
    "preferred-many": 5,
    "weighted-interleave": 6,
}
#: Time limit of a guest for all cases, seconds.
_TIMEOUT = 900


@dataclass(frozen=True)
class Case:
    """An allocation from a processor of node ``origin`` under a policy for ``nodes``."""

    name: str
    policy: str
    origin: int
    nodes: list[int]
    weights: list[int]
    pages: int


def cases(topology: dict[str, Any]) -> list[Case]:
    """Allocations on a machine: each policy, with and without nodes that become full."""
    nodes = topology["nodes"]
    sizes = _pages(nodes)
    cores = [node["node"] for node in nodes if node["cpus"]]
    first, last = cores[0], cores[-1]
    far = next(n["node"] for n in nodes if not n["cpus"] and n["socket"] == nodes[first]["socket"])
    total, everywhere = sum(sizes), [node["node"] for node in nodes]
    both = sizes[first] + sizes[far]
    weights = [1 + (3 * node["node"]) % 5 for node in nodes]

    def case(policy: str, origin: int, chosen: list[int], pages: float, suffix: str = "") -> Case:
        given = weights[: len(chosen)] if policy == "weighted-interleave" else []
        name = f"{policy} {','.join(map(str, chosen))}{suffix}, from {origin}".replace(" ,", ",")
        return Case(name, policy, origin, chosen, given, int(pages))

    return [
        case("default", first, [], 0.8 * total),
        case("default", last, [], 0.8 * total),
        case("bind", first, [first, far], 0.6 * both),
        case("bind", last, [first, far], 0.6 * both),
        case("interleave", first, [first, far], 0.2 * both),
        case("interleave", first, [first, far], 0.65 * total, ", both run full"),
        case("interleave", last, everywhere, 0.8 * total),
        case("preferred-many", first, [last, far], 0.6 * total),
        case("preferred-many", last, [first, far], 0.6 * total),
        case("weighted-interleave", first, [first, far], 0.2 * both),
        case("weighted-interleave", first, everywhere, 0.8 * total),
    ]


def record(machine: str, kernel: str | None = None, *, added: bool = False) -> dict[str, Any]:
    """Boot with the nodes of ``machine``, run its cases, return what the kernel reported.

    Args:
        machine: name of a machine that has nodes without cores.
        kernel: Debian's package of the kernel; None for 6.12.
        added: add half of each node without cores to the running system, as movable memory.

    Raises:
        NearfarError: QEMU or the Rust compiler is missing, or the guest failed.
    """
    topology = numa.topology(machine)
    asked = cases(topology)
    lines = "".join(line(case, topology) for case in asked)
    words = ["transparent_hugepage=never", "init_on_alloc=0", "numa_balancing=disable"]
    words += ["log_buf_len=1M", "nokaslr"]
    words += ["memhp_default_state=online_movable"] if added else []
    guest = Guest(
        architecture="x86_64",
        hardware=_hardware(machine, topology, added),
        kernel=kernel,
        parameters=words,
        # Little memory below 4 GiB, because policies do not apply to the kernel's lower zones.
        qemu=["-machine", "max-ram-below-4g=128M"],
    )
    files = {"/work/allocate": compiled(), "/cases": lines.encode()}
    done = guest.run(["./allocate"], files=files, timeout=_TIMEOUT)
    return {
        "machine": machine,
        "added": added,
        "qemu": qemu_version(),
        **parse(done.output.decode(errors="replace"), asked),
    }


def parse(console: str, asked: Sequence[Case]) -> dict[str, Any]:
    """Parse the output of ``allocate.rs``.

    Raises:
        NearfarError: the output is incomplete, or the kernel refused a case.
    """
    found: dict[str, Any] = {"kernel": "", "tables": {}}
    rows: dict[str, dict[int, list[int]]] = {"distance": {}, "fallback": {}}
    results: dict[str, dict[str, Any]] = {}
    at: dict[str, Any] = {}
    done = 0
    for line in console.replace("\r", "").splitlines():
        if not line.startswith("@@"):
            continue
        word, _, rest = line[2:].partition(" ")
        if word == "kernel":
            found["kernel"] = rest
        elif word == "table":
            name, _, digits = rest.partition(" ")
            found["tables"][name] = digits
        elif word in rows:
            # The kernel prints its fallback order again when memory is added; the last one counts.
            place, *row = rest.replace(":", "").split()
            rows[word][int(place)] = [int(number) for number in row]
        elif word == "case":
            at = results.setdefault(rest, {"path": []})
        elif word in ("free", "left", "first"):
            at[word] = [int(number) for number in rest.split()]
        elif word == "start":
            at[word] = int(rest)
        elif word == "path":
            at["path"].append([int(number) for number in rest.split()])
        elif word == "maps":
            counts = (part[1:].split("=") for part in rest.split())
            at["maps"] = {node: int(pages) for node, pages in counts}
        elif word == "done":
            done += rest == "0"
        elif word == "refused":
            raise NearfarError(f"the kernel refused a case: {rest}")
    if done != len(asked) or any("left" not in results.get(case.name, {}) for case in asked):
        last = " / ".join(console.strip().splitlines()[-3:])
        raise NearfarError(f"{done} of {len(asked)} cases finished; last output: {last[:300]}")
    found["distances"], found["fallback"] = (
        [table[node] for node in sorted(table)] for table in rows.values()
    )
    found["cases"] = [asdict(case) | results[case.name] for case in asked]
    return found


def _pages(nodes: Sequence[dict[str, Any]]) -> list[int]:
    """Pages of each emulated node, without those for the kernel."""
    return [256 * (_DRAM if node["cpus"] else _FAR) for node in nodes]


def line(case: Case, topology: dict[str, Any]) -> str:
    """A case as a line of ``/cases``, which ``allocate.rs`` reads."""
    # Each node with cores has one processor in the guest, numbered in this order.
    processors = [node["node"] for node in topology["nodes"] if node["cpus"]]
    numbers = [",".join(map(str, given)) for given in (case.nodes, case.weights)]
    words = [case.name, processors.index(case.origin), _POLICIES[case.policy], *numbers, case.pages]
    return "|".join(map(str, words)) + "\n"


def _hardware(machine: str, topology: dict[str, Any], added: bool) -> Hardware:
    """A guest with a machine's nodes, each with one core or none."""
    nodes = topology["nodes"]
    mib = [pages // 256 for pages in _pages(nodes)]
    hosts = [node["node"] for node in nodes if node["cpus"]]
    mib[hosts[0]] += _KERNEL
    later = [_PART if added and not node["cpus"] else 0 for node in nodes]
    links = {}
    sections = machines.load(machine).to_dict()
    for host in hosts:
        for node in nodes:
            local = nodes[host]["socket"] == node["socket"]
            section = sections["node"][sections["topology"]["nodes"][node["node"]]]
            latency = round(node["local_read_ns"] if local else node["remote_read_ns"])
            rate = section["local" if local else "remote"].get("read_bandwidth")
            rate = rate or section["local"]["read_bandwidth"]
            # The values are in GB/s here; the difference to GiB/s does not matter.
            gib = int(float(re.sub(r"[^0-9.]", "", rate["value"])))
            links[host, node["node"]] = Link(latency, gib << 30)
    return Hardware(
        [
            Node((whole - part) << 20, min(node["cpus"], 1), node["socket"], part << 20)
            for node, whole, part in zip(nodes, mib, later, strict=True)
        ],
        topology["distances"],
        links,
    )


def qemu_version(architecture: str = "x86_64") -> str:
    """The version line of QEMU."""
    return _output(ARCHITECTURES[architecture].qemu[0], "--version").splitlines()[0]


def compiled() -> bytes:
    """``allocate.rs`` compiled to a static program."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "allocate"
        _output(
            *("rustc", "--edition", "2024", "-O", "-C", "target-feature=+crt-static"),
            *("-C", "panic=abort", "-C", "strip=symbols"),
            *(str(Path(__file__).with_name("allocate.rs")), "-o", str(made)),
        )
        return made.read_bytes()


def _output(name: str, *words: str) -> str:
    """Standard output of a program.

    Raises:
        NearfarError: the program is not installed or fails.
    """
    done = subprocess.run([program(name), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NearfarError(f"{name}: {done.stderr.strip()[-300:] or done.returncode}", 3)
    return done.stdout
