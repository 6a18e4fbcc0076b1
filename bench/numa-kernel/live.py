"""`nearfar run --far node:1` in a guest with two memory nodes: Debian's kernel under QEMU.

The guest runs the runtime's tests, then a program alone, and under each policy with part of its
memory on node 1, also while node 1 is full. Processors are emulated, so times mean little; the
nodes of pages and the data that the program reads are compared.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agree import Agreement
from placement import qemu_version

from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node
from nearfar.guest.packages import program
from nearfar.live import LIBRARY

ROOT = Path(__file__).parent.parent.parent
ARCHITECTURES = ("x86_64", "aarch64")
POLICIES = ("none", "autonuma", "tpp", "nomad", "ssp")
#: Policies that also run while node 1 is full, and the MiB that are left free there.
WHEN_FULL, LEFT = ("tpp", "ssp"), 6
#: Fast memory, MiB of the program, and its references: fewer on aarch64, where QEMU is slower.
FAST, MIB, REFERENCES = "4M", 12, {"x86_64": 60_000, "aarch64": 20_000}
#: For "hot": MiB that the program reads over and over after it wrote all its memory, seconds, and
#: policies that must have promoted these MiB at the end.
HOT, HOT_SECONDS, PROMOTING = 2, 60, POLICIES[1:]
#: A release build with the checks of tests.
CHECKED = (
    "--release",
    *("--config", "profile.release.debug-assertions=true"),
    *("--config", "profile.release.overflow-checks=true"),
)
#: Maximum free frames that the runtime holds: spare ones, and those of its discard area.
MAX_FREE = 8 + 64
#: Time limit of the guest, seconds.
TIMEOUT = 3600
_NODES = (Node(memory=640 << 20, cpus=2), Node(memory=128 << 20))
_SCRIPT = """
set -e
program="./two_nodes program {mib} {references}"
echo "@@kernel $(uname -r)"
echo "@@case alone"
$program
run="./two_nodes run ./libnearfar_preload.so {fast} node:1"
for policy in {policies}; do
  echo "@@case $policy"
  $run $policy $program
done
for policy in {hot}; do
  echo "@@case $policy, hot"
  $run $policy ./two_nodes hot {mib} {hot_mib} {hot_seconds}
done
for policy in {when_full}; do
  echo "@@case $policy, node 1 full"
  ./two_nodes fill 1 {left} $run $policy $program
done
"""
_TESTS = """
echo "@@kernel $(uname -r)"
./tests {chosen} 2>&1
"""


def guest(architecture: str) -> Guest:
    """A guest with two nodes, the second without processors, and without NUMA balancing."""
    return Guest(
        architecture=architecture,
        hardware=Hardware(_NODES),
        packages=["libgcc-s1", "coreutils"],
        parameters=["numa_balancing=disable"],
    )


def programs(
    architecture: str,
    policies: Sequence[str] = POLICIES,
    when_full: Sequence[str] = WHEN_FULL,
    references: int | None = None,
    hot: Sequence[str] = (),
) -> dict[str, Any]:
    """Run the program alone and under policies; return :func:`parse` of its output.

    Raises:
        NearfarError: a tool is missing, or the guest failed.
    """
    # The options of `make test`, so that most crates are already compiled.
    whole = ("--workspace",) if architecture == platform.machine() else ("-p", "nearfar-live")
    made = built(architecture, "build", *CHECKED, *whole, "--example", "two_nodes")
    put: dict[str, Path | bytes] = {
        "/work/two_nodes": stripped(made["two_nodes"], architecture),
        f"/work/{LIBRARY.name}": stripped(_library(architecture), architecture),
    }
    chosen = {
        "policies": " ".join(policies),
        "when_full": " ".join(when_full),
        "hot": " ".join(hot),
        "hot_mib": HOT,
        "hot_seconds": HOT_SECONDS,
    }
    references = references or REFERENCES[architecture]
    script = _SCRIPT.format(mib=MIB, references=references, fast=FAST, left=LEFT, **chosen)
    put["/work/run.sh"] = script.encode()
    done = guest(architecture).run(["sh", "run.sh"], files=put, timeout=TIMEOUT)
    if done.exit_code:
        raise NearfarError(f"two_nodes: {done.error.decode(errors='replace').strip()[-300:]}", 1)
    return parse(done.output.decode(errors="replace"))


def _library(architecture: str) -> Path:
    """The library of `nearfar run` that is preloaded into programs of an architecture."""
    if architecture != platform.machine():
        made = built(architecture, "build", *CHECKED, "-p", "nearfar-preload")
        return made["nearfar_preload"]
    if not LIBRARY.exists():
        raise NearfarError(f"{LIBRARY.name}: is not built; run `make live`", 3)
    return LIBRARY


def parse(text: str) -> dict[str, Any]:
    """Parse the output of :data:`_SCRIPT`: the kernel's version, and results by case.

    Pages on nodes 0 and 1: ``@@nodes`` as the kernel counts, ``@@used`` as the runtime does,
    ``@@hot`` those read over and over. ``@@left``: free MiB of node 1 before and after the run.

    Raises:
        NearfarError: a program read wrong data.
    """
    found: dict[str, Any] = {"kernel": "", "cases": {}}
    case: dict[str, Any] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "@@kernel":
            found["kernel"] = rest
        elif word == "@@case":
            case = found["cases"].setdefault(rest, {})
        elif word == "@@sum":
            case["sum"] = rest
        elif word == "@@hot":
            case["hot"] = [int(pages) for pages in rest.split()[:2]]
        elif word in ("@@nodes", "@@used"):
            case[word[2:]] = [int(pages) for pages in rest.split()]
        elif word == "@@summary":
            summary = json.loads(rest)
            case["counters"] = summary["counters"]
            case["exit_code"], case["why"] = summary["exit_code"], summary["why"]
        elif word == "@@left":
            case.setdefault("left", []).append(int(rest))
        elif word == "@@wrong":
            raise NearfarError(f"a wrong byte: {rest}", 1)
    return found


def tests(architecture: str, chosen: str = "") -> dict[str, Any]:
    """Run the runtime's tests in a guest; return those that passed, and those that were not run.

    Args:
        architecture: of the guest.
        chosen: a part of the tests' names; empty for all tests.

    Raises:
        NearfarError: a tool is missing, or a test failed.
    """
    made = built(architecture, "test", "-p", "nearfar-live", "--lib", "--no-run")
    put: dict[str, Path | bytes] = {
        "/work/tests": stripped(made["nearfar_live"], architecture),
        "/work/run.sh": _TESTS.format(chosen=chosen).encode(),
    }
    done = guest(architecture).run(["sh", "run.sh"], files=put, timeout=TIMEOUT)
    lines = done.output.decode(errors="replace").splitlines()
    passed = [line.split()[1] for line in lines if line.endswith(" ... ok")]
    skipped = [line.partition(": not run: ")[::2] for line in lines if ": not run: " in line]
    if done.exit_code:
        raise NearfarError(f"tests on {architecture}: " + " / ".join(lines[-20:])[-1500:], 1)
    return {"kernel": lines[0].split()[1], "passed": sorted(passed), "not_run": skipped}


def record(architecture: str) -> dict[str, Any]:
    """Run tests and programs in guests of an architecture; return their record."""
    found = {"machine": f"guest-{architecture}", "added": False, "qemu": qemu_version(architecture)}
    found["tests"] = tests(architecture, "linux::")
    found["kernel"] = found["tests"]["kernel"]
    cases = programs(architecture, hot=("none", *PROMOTING))["cases"]
    found["hot"] = {name: cases.pop(name) for name in [*cases] if name.endswith(", hot")}
    found["cases"] = cases
    return found


def agreements(record: dict[str, Any]) -> list[Agreement]:
    """Compare the runtime's counts of pages with the kernel's, and data with the program alone."""
    tests = record["tests"]
    left, passed = len(tests["not_run"]), len(tests["passed"])
    found = [
        Agreement("tests that were not run", str(left), "0", float(left > 0)),
        Agreement("tests that passed", str(passed), "some", float(passed == 0)),
    ]
    for name, case in record.get("hot", {}).items():
        # Under `none` hot pages stay on node 1; other policies may leave 1 MiB (256 pages) there.
        slow, expected = case["hot"][1], HOT * 256 if name.startswith("none") else 0
        item = f"{name}: hot pages on node 1"
        found.append(Agreement(item, str(slow), str(expected), abs(slow - expected), 256))
    cases = record.get("cases", {})
    alone = cases.get("alone", {}).get("sum", "")
    for name, case in cases.items():
        if name == "alone":
            continue
        read = case["sum"]
        found.append(Agreement(f"{name}: what is read", read, alone, float(read != alone)))
        far, counted = case["nodes"][1], case["used"][1]
        # The runtime releases unused frames in batches.
        apart = max(counted - far, far - counted - MAX_FREE, 0) / max(counted, 1)
        sides = (str(far), f"{counted} to {counted + MAX_FREE}")
        found.append(Agreement(f"{name}: pages on node 1", *sides, apart))
    return found


def built(architecture: str, *words: str) -> dict[str, Path]:
    """Run cargo for an architecture; return the programs and libraries that it builds, by name.

    Raises:
        NearfarError: cargo fails (exit code 3).
    """
    command = [program("cargo", "cargo"), *words, "--locked", "--quiet", "--message-format=json"]
    environment = dict(os.environ)
    if architecture != platform.machine():
        target = f"{architecture}-unknown-linux-gnu"
        command += ["--target", target]
        key = f"CARGO_TARGET_{target.upper().replace('-', '_')}_LINKER"
        environment.setdefault(key, f"{architecture}-linux-gnu-gcc")
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NearfarError(f"cargo: {done.stderr.strip()[-500:]}", 3)
    found = {}
    for line in done.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact":
            continue
        made = [message["executable"]] if message["executable"] else message["filenames"]
        for path in map(Path, made):
            if message["executable"] or path.suffix == ".so":
                found[message["target"]["name"]] = path
    return found


def stripped(path: Path, architecture: str) -> bytes:
    """The bytes of a program or library without its symbols."""
    native = architecture == platform.machine()
    strip = program("strip" if native else f"{architecture}-linux-gnu-strip", "binutils")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / path.name
        done = subprocess.run(
            [strip, "-o", str(made), str(path)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise NearfarError(f"{strip}: {done.stderr.strip()[-300:]}", 3)
        return made.read_bytes()
