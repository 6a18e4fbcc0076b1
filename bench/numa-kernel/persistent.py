"""Persistent memory as system memory in a guest, set up by the output of ``nearfar numa plan``.

Debian's kernel finds the NVDIMMs in the NFIT table. ``ndctl`` makes devices of them, and ``daxctl``
makes the devices system memory (driver ``kmem``). The record has the nodes of pages of programs and
of the kernel itself.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import placement
from agree import Agreement, described

from nearfar import emit, numa
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node

MACHINE = "optane-4node"
_PAGE = 4096
#: MiB of a DRAM node, additional MiB of the first for the kernel and its files, and MiB of a
#: persistent node, of which one block of 128 MiB is lost to the device's metadata.
_DRAM, _FILES, _FAR = 128, 256, 384
_TIMEOUT = 600
#: Pages of each allocation by the kernel, and the nodes to interleave them over. The first four
#: need in turn: a DRAM node, all DRAM, near persistent memory too, far persistent memory too.
_SIZES: tuple[tuple[int, tuple[int, ...]], ...] = (
    (40_000, ()),
    (100_000, ()),
    (180_000, ()),
    (300_000, ()),
    (30_000, (4, 5)),
)
#: Number of sizes up to the first that exceeds all DRAM.
_UP_TO_TOO_LARGE = 3


@dataclass(frozen=True)
class Variant:
    """How persistent memory becomes system memory.

    Attributes:
        name: of the variant.
        mode: of the plan, whose script for ``daxctl`` runs in the guest.
        slit: whether the firmware's distances are replaced by those of :func:`made_slit`.
    """

    name: str
    mode: str
    slit: bool = False

    @property
    def kernel_too(self) -> bool:
        """Whether the kernel may use the memory itself, because it is not movable."""
        return self.mode == "alius"


VARIANTS = (
    Variant("movable", "kmem-dax"),
    Variant("kernel", "alius"),
    Variant("slit", "alius", slit=True),
)


def record(variant: Variant, firmware: str = "") -> dict[str, Any]:
    """Boot, make persistent memory system memory, and allocate; return what the kernel reported.

    Args:
        variant: one of :data:`VARIANTS`.
        firmware: the guest's SLIT in hexadecimal digits, from the record of another variant; only
            needed if ``variant.slit``.

    Raises:
        NearfarError: QEMU, a tool or a package is missing, or the guest failed.
    """
    topology = numa.topology(MACHINE)
    # The first two cases have the default policy.
    users = [] if variant.kernel_too else placement.cases(topology)[:2]
    sizes = _SIZES if variant.kernel_too else _SIZES[:_UP_TO_TOO_LARGE]
    lines = (f"{pages} {_interleave(nodes)}\n" for pages, nodes in sizes)
    files: dict[str, Path | bytes] = {
        "/work/allocate": placement.compiled(),
        "/cases": "".join(placement.line(case, topology) for case in users).encode(),
        "/work/online": _emitted("daxctl", variant, topology).encode(),
        "/work/sizes": "".join(lines).encode(),
        "/work/persistent.sh": Path(__file__).with_name("persistent.sh"),
    }
    if variant.slit:
        # The kernel reads ACPI tables from this path of its initial ramdisk.
        made = made_slit(topology, bytes.fromhex(firmware))
        files["kernel/firmware/acpi/slit.aml"] = made
    done = _guest(topology).run(["sh", "persistent.sh"], files=files, timeout=_TIMEOUT)
    text = done.output.decode(errors="replace")
    if done.exit_code != 0:
        last = (done.error.decode(errors="replace").strip() or "nothing").splitlines()[-1]
        raise NearfarError(f"{variant.name}: failed in the guest: {last}")
    return {
        "variant": variant.name,
        "machine": MACHINE,
        "added": True,
        "qemu": placement.qemu_version(),
        **placement.parse(text, users),
        **own(text, sizes),
    }


def made_slit(topology: dict[str, Any], firmware: bytes) -> bytes:
    """The firmware's SLIT with 100 added to distances of nodes without cores, so that the kernel
    fills all DRAM first; with a higher revision, without which the kernel ignores it."""
    # Bytes of the table: checksum 9, OEM revision 24, number of nodes 36, distances from 44.
    table = bytearray(firmware)
    far = {node["node"] for node in topology["nodes"] if not node["cpus"]}
    size = table[36]
    for a, b in itertools.permutations(range(size), 2):
        if a in far or b in far:
            at = 44 + a * size + b
            table[at] = min(table[at] + 100, 254)  # 255: unreachable
    revision = int.from_bytes(table[24:28], "little") + 1
    table[24:28] = revision.to_bytes(4, "little")
    table[9] = 0
    table[9] = -sum(table) % 256
    return bytes(table)


def _emitted(kind: str, variant: Variant, topology: dict[str, Any]) -> str:
    """What ``nearfar numa plan --emit KIND`` writes for the variant's mode."""
    nodes = topology["nodes"]
    row = {
        "vm": "all",
        "mode": variant.mode,
        "from": 0,
        "nodes": [],
        "weights": [],
        "dram_nodes": [node["node"] for node in nodes if node["cpus"]],
        "far_nodes": [node["node"] for node in nodes if not node["cpus"]],
    }
    return emit.emit(kind, row)


def _interleave(nodes: Sequence[int]) -> str:
    """The command prefix that interleaves memory over nodes; empty for no nodes."""
    return f"numactl --interleave={','.join(map(str, nodes))}" if nodes else ""


def _guest(topology: dict[str, Any]) -> Guest:
    """A guest with the machine's nodes; those without cores are persistent memory."""
    nodes = [
        Node(_DRAM << 20 if node["cpus"] else 0, min(node["cpus"], 1), node["socket"])
        for node in topology["nodes"]
    ]
    nodes[0] = Node((_DRAM + _FILES) << 20, 1, nodes[0].socket)
    far = [number for number, node in enumerate(nodes) if not node.cpus]
    words = ["-machine", "nvdimm=on,max-ram-below-4g=256M", "-m", "slots=8,maxmem=64G"]
    for place, number in enumerate(far):
        words += ["-object", f"memory-backend-ram,id=far{number},size={_FAR}M"]
        # QEMU 7.2 lists NVDIMMs in the order of a hash of their names, and Linux numbers nodes in
        # that order. With these names it is the order of the nodes.
        words += ["-device", f"nvdimm,id=pmem{2 * place},memdev=far{number},node={number}"]
    parameters = ["transparent_hugepage=never", "init_on_alloc=0", "numa_balancing=disable"]
    return Guest(
        architecture="x86_64",
        hardware=Hardware(nodes, topology["distances"]),
        packages=["ndctl", "daxctl", "numactl"],
        modules=["nfit", "nd_pmem", "dax_pmem", "device_dax", "kmem", "zram"],
        parameters=[*parameters, "log_buf_len=1M", "nokaslr"],
        qemu=words,
    )


def own(text: str, asked: Sequence[tuple[int, tuple[int, ...]]]) -> dict[str, Any]:
    """Parse the guest's output about the kernel's own allocations (``asked``) and about zones.

    Its lines: ``@@vmalloc PAGES PREFIX``; ``@@vfree`` and the free pages of each node; ``@@vlanded
    N0=PAGES ...``, without counts if the allocation failed; ``@@zone NODE NAME PAGES``.
    """
    found: list[dict[str, Any]] = []
    zones = []
    for line in text.splitlines():
        word, *rest = line.removeprefix("@@").split()
        if word == "vmalloc":
            pages, nodes = asked[len(found)]
            found.append({"pages": pages, "nodes": list(nodes)})
        elif word == "vfree":
            found[-1]["free"] = [int(number) for number in rest]
        elif word == "vlanded":
            counts = dict(each[1:].split("=") for each in rest)
            landed = [int(counts.get(str(node), 0)) for node in range(len(found[-1]["free"]))]
            found[-1]["landed"] = landed if rest else None
        elif word == "zone":
            zones.append([int(rest[0]), rest[1], int(rest[2])])
    if len(found) != len(asked) or any("landed" not in each for each in found):
        raise NearfarError(
            f"the guest reported {len(found)} of {len(asked)} allocations by the kernel"
        )
    return {"vmalloc": found, "zones": zones}


def agreements(record: dict[str, Any]) -> list[Agreement]:
    """Compare the nodes of the kernel's own pages with the model."""
    (variant,) = (each for each in VARIANTS if each.name == record["variant"])
    found = []
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "guest.toml"
        for one in record["vmalloc"]:
            machine.write_text(described(record, one["free"]))
            if variant.slit and not one["nodes"]:
                found.append(_by_kind(machine, one))
            # In memory that is not movable, the kernel's own pages are placed like a program's.
            allocator = "user" if variant.kernel_too else "vmalloc"
            mode = "interleave" if one["nodes"] else "kmem-dax"
            found.append(landed(machine, one, mode, allocator))
    return found


def landed(machine: Path, one: dict[str, Any], mode: str, allocator: str) -> Agreement:
    """Compare an allocation's pages by node with the model, or whether it is possible at all."""
    how = f", interleaved over {','.join(map(str, one['nodes']))}" if one["nodes"] else ""
    item = f"{one['pages']:,} pages of the kernel{how}"
    row = _allocated(machine, one, mode, allocator)
    if one["landed"] is None or not row["possible"]:
        sides = [
            "possible" if possible else "impossible"
            for possible in (one["landed"] is not None, row["possible"])
        ]
        return Agreement(item, *sides, float(sides[0] != sides[1]))
    model = {part["node"]: part["bytes"] // _PAGE for part in row["landed"]}
    ours = [model.get(node, 0) for node in range(len(one["landed"]))]
    return _compared(item, one["landed"], ours, one["pages"])


def _by_kind(machine: Path, one: dict[str, Any]) -> Agreement:
    """Compare with mode ``alius`` by kind: near DRAM and persistent memory, then far ones."""
    row = _allocated(machine, one, "alius", "vmalloc")
    ours, theirs = [], []
    for local in (True, False):
        for kind in ("dram", "pmem"):
            parts = [p for p in row["landed"] if (p["local"], p["kind"]) == (local, kind)]
            ours.append(sum(part["bytes"] for part in parts) // _PAGE)
            theirs.append(sum(one["landed"][part["node"]] for part in parts))
    return _compared(f"{one['pages']:,} pages by kind, beside alius", theirs, ours, one["pages"])


def _allocated(machine: Path, one: dict[str, Any], mode: str, allocator: str) -> dict[str, Any]:
    """The model's row for an allocation."""
    found: dict[str, Any] = numa.alloc(
        [one["pages"] * _PAGE],
        machine=str(machine),
        mode=[mode],
        allocator=allocator,
        nodes=one["nodes"],
        from_=0,
    ).rows[0]
    return found


def _compared(item: str, kernel: list[int], model: list[int], pages: int) -> Agreement:
    apart = max(abs(a - b) for a, b in zip(kernel, model, strict=True)) / pages
    sides = (" ".join(f"{100 * each / pages:.1f}" for each in side) for side in (kernel, model))
    return Agreement(item, *sides, apart)
