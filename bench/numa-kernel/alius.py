"""aliusM (paper 004) in the kernel: builds Debian's source with our patch, and boots it in a guest.

With the patch (`bench/alius-kernel`) and the parameter `alius`, the kernel uses persistent memory
of the firmware's map as ordinary memory (variant "alius"). Without the parameter the patched kernel
behaves as the unpatched one (variant "stock").
"""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import persistent
import placement
from agree import Agreement, case_agreements, described

from nearfar import numa
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node
from nearfar.guest.packages import Packages, program

MACHINE: Final = persistent.MACHINE
VARIANTS: Final = ("stock", "alius")
ROOT: Final = Path(__file__).parent.parent.parent
#: Our patch and configuration, under the kernel's licence.
PATCH: Final = ROOT / "bench" / "alius-kernel"
BUILD: Final = ROOT / "build" / "alius-kernel"
_SOURCE: Final = "linux-source-6.12"
_PAGE: Final = 4096
#: MiB of a DRAM node, additional MiB of the first for the kernel and its files, MiB of a persistent
#: node, and MiB of memory below 4 GiB.
_DRAM, _FILES, _FAR, _LOW = 128, 256, 384, 256
#: Pages of each allocation by the kernel. They need in turn: a DRAM node, all DRAM, near persistent
#: memory too, far persistent memory too, most of all memory.
SIZES: Final = (40_000, 100_000, 180_000, 300_000, 450_000)
_TIMEOUT: Final = 900


def built() -> Path:
    """The folder of the patched kernel, laid out as an unpacked package; builds it if missing.

    Raises:
        NearfarError: a tool or the source is missing, or the build fails (exit code 3).
    """
    if platform.machine() != "x86_64":
        raise NearfarError("alius: the kernel is built on x86_64 only", 3)
    package = Packages("amd64").fetch_kernel([_SOURCE])
    parts = [package.name.encode()]
    parts += [(PATCH / name).read_bytes() for name in ("alius.patch", "config")]
    made = BUILD / hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    if made.exists():
        return made
    for name in ("flex", "bison", "bc", "gcc", "make", "patch", "xz"):
        program(name, name)
    BUILD.mkdir(parents=True, exist_ok=True)
    print("alius: building a kernel, about 10 minutes of processor time", file=sys.stderr)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory(prefix=".", dir=BUILD) as scratch:
        folder, log = Path(scratch), BUILD / "log"
        source = folder / _SOURCE
        steps = (
            f"dpkg-deb --fsys-tarfile '{package}' | tar -xO ./usr/src/{_SOURCE}.tar.xz | tar -xJ",
            f"cd {_SOURCE} && patch -p1 < '{PATCH / 'alius.patch'}' && make -s allnoconfig",
            f"cd {_SOURCE} && scripts/kconfig/merge_config.sh -m .config '{PATCH / 'config'}'",
            f"cd {_SOURCE} && make -s olddefconfig && make -s -j{os.cpu_count()} bzImage",
        )
        with log.open("wb") as writing:
            for step in steps:
                words = ["bash", "-c", f"set -o pipefail; {step}"]
                done = subprocess.run(
                    words, cwd=folder, stdout=writing, stderr=subprocess.STDOUT, check=False
                )
                if done.returncode != 0:
                    raise NearfarError(f"alius: the kernel does not build; see {log}", 3)
        release = (source / "include/config/kernel.release").read_text().strip()
        (folder / "made" / "boot").mkdir(parents=True)
        image = folder / "made" / "boot" / f"vmlinuz-{release}"
        (source / "arch/x86/boot/bzImage").rename(image)
        (folder / "made").rename(made)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    minutes = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / 60
    print(f"alius: built in {minutes:.1f} minutes of processor time", file=sys.stderr)
    return made


def record(variant: str, kernel: Path) -> dict[str, Any]:
    """Boot a guest and make its kernel allocate memory; return what the kernel reported.

    Args:
        variant: one of :data:`VARIANTS`.
        kernel: the folder of the patched kernel.

    Raises:
        NearfarError: no QEMU, or the guest failed.
    """
    topology = numa.topology(MACHINE)
    sizes = [(pages, ()) for pages in SIZES]
    # Allocations of programs, which exceed DRAM, need the memory that only "alius" uses.
    # The first two cases have the default policy.
    users = placement.cases(topology)[:2] if variant == "alius" else []
    files: dict[str, Path | bytes] = {
        "/work/allocate": placement.compiled(),
        "/cases": "".join(placement.line(case, topology) for case in users).encode(),
        "/work/online": b"",  # no devices to make system memory
        "/work/sizes": "".join(f"{pages}\n" for pages in SIZES).encode(),
        "/work/persistent.sh": Path(__file__).with_name("persistent.sh"),
    }
    guest = _guest(topology, kernel, alius=variant == "alius")
    done = guest.run(["sh", "persistent.sh"], files=files, timeout=_TIMEOUT)
    if done.exit_code != 0:
        last = (done.error.decode(errors="replace").strip() or "nothing").splitlines()[-1]
        raise NearfarError(f"{variant}: failed in the guest: {last}")
    text = done.output.decode(errors="replace")
    return {
        "variant": variant,
        "machine": MACHINE,
        "added": True,
        "qemu": placement.qemu_version(),
        **placement.parse(text, users),
        **persistent.own(text, sizes),
    }


def _guest(topology: dict[str, Any], kernel: Path, *, alius: bool) -> Guest:
    """A guest with the machine's nodes, some of which hold persistent memory.

    QEMU's firmware cannot mark memory as persistent, so Linux's parameter `memmap=SIZE!START` does.
    """
    nodes = [
        Node((_DRAM if node["cpus"] else _FAR) << 20, min(node["cpus"], 1), node["socket"])
        for node in topology["nodes"]
    ]
    nodes[0] = Node((_DRAM + _FILES) << 20, 1, nodes[0].socket)
    # Memory lies in the order of nodes; the first _LOW MiB below 4 GiB, the rest above.
    at, ranges = 4096 - _LOW, []
    for node in nodes:
        if not node.cpus:
            ranges.append(f"{node.memory >> 20}M!{at}M")
        at += node.memory >> 20
    words = ["init_on_alloc=0", "log_buf_len=1M", "nokaslr", f"memmap={','.join(ranges)}"]
    return Guest(
        architecture="x86_64",
        hardware=Hardware(nodes, topology["distances"]),
        kernel=kernel,
        parameters=[*words, *(["alius"] if alius else [])],
        qemu=["-machine", f"max-ram-below-4g={_LOW}M"],
    )


def agreements(record: dict[str, Any]) -> list[Agreement]:
    """Compare fallback orders and the pages of each allocation by node with the model."""
    patched = record["variant"] == "alius"
    topology = numa.topology(MACHINE)
    kinds = [node["kind"] for node in topology["nodes"]]
    found = []
    for node in (each["node"] for each in topology["nodes"] if each["cpus"]):
        # DRAM in the order of stock Linux, then persistent memory if the kernel uses it.
        dram, far = (
            [other for other in topology["fallback"][node] if (kinds[other] == "dram") is wanted]
            for wanted in (True, False)
        )
        model, kernel = dram + (far if patched else []), record["fallback"][node]
        sides = (" ".join(map(str, side)) for side in (kernel, model))
        found.append(Agreement(f"fallback of node {node}", *sides, float(kernel != model)))
    with tempfile.TemporaryDirectory() as folder:
        machine = Path(folder) / "guest.toml"
        for one in record["vmalloc"]:
            # Nodes that the kernel does not use are missing from its list of free pages.
            free = one["free"] + [(_FAR << 20) // _PAGE] * (len(kinds) - len(one["free"]))
            whole = {**record, "distances": topology["distances"]}
            machine.write_text(described(whole, free, device=not patched))
            mode = "alius" if patched else "local"
            found.append(persistent.landed(machine, one, mode, "vmalloc"))
        for case in record["cases"]:
            machine.write_text(described(record, case["free"]))
            found += case_agreements(str(machine), case, "alius")
    return found
