"""Boot Debian's kernel under QEMU with a machine's memory nodes and let it place memory.

The machine is emulated (TCG), so times mean nothing; where pages land is up to the real allocator.
Its nodes are much smaller than the machine's; numbers, sockets, distances, latencies and bandwidths
(SRAT, SLIT, HMAT) are the machine file's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nearfar import machine as machines
from nearfar import numa

HERE = Path(__file__).parent
#: Debian's package of the kernel that knows weighted interleaving (6.9 and later).
KERNEL = "linux-image-6.12-cloud-amd64"
#: MiB of a node of DRAM and of another; what the kernel has of the node that it boots on; and what
#: another node has at boot where the rest is added later, a part that the kernel can add.
_DRAM, _FAR, _KERNEL, _PART = 128, 256, 128, 128
#: Linux's numbers of the policies (include/uapi/linux/mempolicy.h).
_POLICIES = {
    "default": 0,
    "bind": 2,
    "interleave": 3,
    "preferred-many": 5,
    "weighted-interleave": 6,
}
#: Seconds that an emulated machine may take for all cases.
_TIMEOUT = 900


class Unavailable(Exception):
    """This machine cannot do it: why, and what to do."""


@dataclass(frozen=True)
class Case:
    """An allocation: who, how, how many pages."""

    name: str
    policy: str
    origin: int
    nodes: list[int]
    weights: list[int]
    pages: int


def kernel(scratch: Path) -> Path:
    """The kernel's image: an installed one, or of a package that is fetched and unpacked.

    Raises:
        Unavailable: neither.
    """
    installed = sorted(Path("/boot").glob("vmlinuz-6.12*"))
    if installed:
        return installed[-1]
    if shutil.which("apt-get") is None:
        raise Unavailable(f"no kernel 6.12 in /boot, and no apt-get to fetch {KERNEL} with")
    named = _output("apt-cache", "depends", KERNEL)
    found = re.search(r"Depends: (linux-image-\S+)", named)
    if not found:
        raise Unavailable(f"apt-cache knows no {KERNEL}; run apt-get update or install kernel 6.12")
    scratch.mkdir(parents=True, exist_ok=True)
    _output("apt-get", "download", "-q", found[1], cwd=scratch)
    for package in scratch.glob(f"{found[1]}_*.deb"):
        _output("dpkg-deb", "-x", str(package), str(scratch))
        package.unlink()
    images = sorted(scratch.glob("boot/vmlinuz-*"))
    if not images:
        raise Unavailable(f"{found[1]} could not be fetched; install it")
    return images[-1]


def cases(topology: dict[str, Any]) -> list[Case]:
    """Allocations for a machine: each policy, with and without nodes that run full."""
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


def record(machine: str, image: Path, scratch: Path, *, added: bool = False) -> dict[str, Any]:
    """Boot with the nodes of ``machine``, run its cases, return what the kernel reported.

    Args:
        machine: name of a machine with nodes without cores.
        image: the kernel.
        scratch: a folder to work in.
        added: half of each node without cores is added to the running system, as movable memory.

    Raises:
        Unavailable: no QEMU or Rust compiler, or the machine did not come to its end.
    """
    topology = numa.topology(machine)
    asked = cases(topology)
    init = scratch / "init"
    _output(
        *("rustc", "--edition", "2024", "-O", "-C", "target-feature=+crt-static"),
        *("-C", "panic=abort", "-C", "strip=symbols", str(HERE / "guest.rs"), "-o", str(init)),
    )
    lines = "".join(_line(case, topology) for case in asked)
    (scratch / "initrd").write_bytes(archive({"init": init.read_bytes(), "cases": lines.encode()}))
    console = scratch / "console"
    words = ["console=ttyS0", "quiet", "transparent_hugepage=never", "init_on_alloc=0", "panic=-1"]
    # On a busy host the emulated timer may be late enough to be taken for broken.
    words += ["numa_balancing=disable", "log_buf_len=1M", "nokaslr", "no_timer_check"]
    words += ["memhp_default_state=online_movable"] if added else []
    command = ["qemu-system-x86_64", *_hardware(machine, topology, added), "-kernel", str(image)]
    command += ["-initrd", str(scratch / "initrd"), "-append", " ".join(words)]
    command += ["-display", "none", "-monitor", "none", "-no-reboot"]
    command += ["-serial", f"file:{console}"]
    _output(*command, timeout=_TIMEOUT)
    output = console.read_text(errors="replace")
    return {
        "machine": machine,
        "added": added,
        "qemu": _output("qemu-system-x86_64", "--version").splitlines()[0],
        **parse(output, asked),
    }


def parse(console: str, asked: Sequence[Case]) -> dict[str, Any]:
    """What the machine wrote on its console, as plain values.

    Raises:
        Unavailable: it ended early, or refused a case.
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
            # The kernel prints the order again whenever memory is added: the last counts.
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
            raise Unavailable(f"the kernel refused a case: {rest}")
    if done != len(asked) or any("left" not in results.get(case.name, {}) for case in asked):
        last = " / ".join(console.strip().splitlines()[-3:])
        raise Unavailable(f"{done} of {len(asked)} cases finished; last output: {last[:300]}")
    found["distances"], found["fallback"] = (
        [table[node] for node in sorted(table)] for table in rows.values()
    )
    found["cases"] = [asdict(case) | results[case.name] for case in asked]
    return found


def archive(files: dict[str, bytes]) -> bytes:
    """A cpio archive (``newc``) of executable files, with the folders and console an init needs."""
    entries = [(name, 0o040755, b"", (0, 0)) for name in ("proc", "sys", "dev")]
    entries.append(("dev/console", 0o020600, b"", (5, 1)))
    entries += [(name, 0o100755, data, (0, 0)) for name, data in files.items()]
    entries.append(("TRAILER!!!", 0, b"", (0, 0)))
    out = bytearray()
    for number, (name, mode, data, device) in enumerate(entries, 1):
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(name) + 1, 0]
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def _pages(nodes: Sequence[dict[str, Any]]) -> list[int]:
    """Pages of each emulated node, less what the kernel has."""
    return [256 * (_DRAM if node["cpus"] else _FAR) for node in nodes]


def _line(case: Case, topology: dict[str, Any]) -> str:
    """A case as the first process reads it."""
    processors = [node["node"] for node in topology["nodes"] if node["cpus"]]
    numbers = [",".join(map(str, given)) for given in (case.nodes, case.weights)]
    words = [case.name, processors.index(case.origin), _POLICIES[case.policy], *numbers, case.pages]
    return "|".join(map(str, words)) + "\n"


def _hardware(machine: str, topology: dict[str, Any], added: bool) -> list[str]:
    """QEMU's options for a machine's nodes."""
    nodes = topology["nodes"]
    hosts = [node for node in nodes if node["cpus"]]
    sockets = sorted({node["socket"] for node in hosts})
    on = {socket: [node for node in hosts if node["socket"] == socket] for socket in sockets}
    dies = max(len(there) for there in on.values())
    if any(len(there) != dies for there in on.values()):
        raise Unavailable(f"{machine}: QEMU wants as many nodes with cores on each socket")
    mib = [pages // 256 for pages in _pages(nodes)]
    mib[hosts[0]["node"]] += _KERNEL
    later = [0 if node["cpus"] or not added else _PART for node in nodes]
    # Little below 4 GiB: policies pass over the kernel's lower zones.
    words = ["-machine", "q35,hmat=on,max-ram-below-4g=128M", "-accel", "tcg", "-cpu", "qemu64"]
    words += ["-m", f"{sum(mib) - sum(later)}M,slots=64,maxmem=64G"]
    words += ["-smp", f"{len(hosts)},sockets={len(sockets)},dies={dies},cores=1,threads=1"]
    numbers = range(len(nodes))
    for node in numbers:
        near = min((host["node"] for host in hosts), key=lambda h: topology["distances"][h][node])
        words += ["-object", f"memory-backend-ram,id=m{node},size={mib[node] - later[node]}M"]
        words += ["-numa", f"node,nodeid={node},memdev=m{node},initiator={near}"]
        if later[node]:
            words += ["-object", f"memory-backend-ram,id=l{node},size={later[node]}M"]
            words += ["-device", f"pc-dimm,memdev=l{node},node={node}"]
    for socket, there in on.items():
        for die, node in enumerate(there):
            place = f"cpu,node-id={node['node']},socket-id={sockets.index(socket)}"
            words += ["-numa", place + (f",die-id={die}" if dies > 1 else "")]
    for a in numbers:
        for b in numbers:
            words += ["-numa", f"dist,src={a},dst={b},val={topology['distances'][a][b]}"]
    sections = machines.load(machine).to_dict()
    for host in hosts:
        for node in nodes:
            local = host["socket"] == node["socket"]
            section = sections["node"][sections["topology"]["nodes"][node["node"]]]
            latency = round(node["local_read_ns"] if local else node["remote_read_ns"])
            rate = section["local" if local else "remote"].get("read_bandwidth")
            rate = rate or section["local"]["read_bandwidth"]
            gib = int(float(re.sub(r"[^0-9.]", "", rate["value"])))
            prefix = f"hmat-lb,initiator={host['node']},target={node['node']},hierarchy=memory"
            words += ["-numa", f"{prefix},data-type=access-latency,latency={latency}"]
            words += ["-numa", f"{prefix},data-type=access-bandwidth,bandwidth={gib}G"]
    return words


def _output(*command: str, cwd: Path | None = None, timeout: float = 300) -> str:
    """Standard output of a command.

    Raises:
        Unavailable: it is not there, fails or takes too long.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=cwd, timeout=timeout
        )
    except FileNotFoundError:
        raise Unavailable(f"no {command[0]}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{command[0]} took more than {timeout} s") from None
    if done.returncode != 0:
        raise Unavailable(f"{command[0]}: {done.stderr.strip()[-300:] or done.returncode}")
    return done.stdout
