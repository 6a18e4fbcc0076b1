"""`nearfar run --far node:1` in a guest with two memory nodes: Debian's kernel under QEMU.

The guest runs the runtime's own tests on its kernel, then a program alone, and under each policy
with a part of its memory on node 1, also while that has no room for it. Processors are emulated, so
times mean little; where pages lie, and what the program reads, is up to the real kernel.
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
#: Those that are run while node 1 is full, and the MiB of it that are left.
WHEN_FULL, LEFT = ("tpp", "ssp"), 6
#: Fast memory of the program, MiB of its own, and how often it refers to a page: less often where
#: QEMU takes longer.
FAST, MIB, REFERENCES = "4M", 12, {"x86_64": 60_000, "aarch64": 20_000}
#: MiB that a program reads over and over, after it wrote all others, and for how many seconds;
#: policies under which they are to be fast at the end.
HOT, HOT_SECONDS, PROMOTING = 2, 60, POLICIES[1:]
#: With what only tests check.
CHECKED = (
    "--release",
    *("--config", "profile.release.debug-assertions=true"),
    *("--config", "profile.release.overflow-checks=true"),
)
#: Most frames that the runtime has not given back yet: spare ones, and those of its yard.
NOBODYS = 8 + 64
#: Seconds that the guest may take.
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
    """Two nodes, the second without processors, between which the kernel moves nothing itself."""
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
    """The program alone and under policies: what each printed, and where its pages were.

    Raises:
        NearfarError: something is missing, or the guest did not come to its end.
    """
    # As `make test` compiles them: of the whole workspace most are made then.
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
    """The library that is loaded into programs of an architecture."""
    if architecture != platform.machine():
        made = built(architecture, "build", *CHECKED, "-p", "nearfar-preload")
        return made["nearfar_preload"]
    if not LIBRARY.exists():
        raise NearfarError(f"{LIBRARY.name}: is not built; run `make live`", 3)
    return LIBRARY


def parse(text: str) -> dict[str, Any]:
    """The lines of :func:`programs` as plain values.

    Raises:
        NearfarError: a program read what it had not written.
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
    """The runtime's tests on a guest's kernel: how many passed, and which were not run.

    Raises:
        NearfarError: something is missing, or the guest did not come to its end.
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
    """All that a guest of an architecture is asked."""
    found = {"machine": f"guest-{architecture}", "added": False, "qemu": qemu_version(architecture)}
    found["tests"] = tests(architecture, "linux::")
    found["kernel"] = found["tests"]["kernel"]
    cases = programs(architecture, hot=("none", *PROMOTING))["cases"]
    found["hot"] = {name: cases.pop(name) for name in [*cases] if name.endswith(", hot")}
    found["cases"] = cases
    return found


def agreements(record: dict[str, Any]) -> list[Agreement]:
    """The runtime's side beside the kernel's, and the program alone."""
    tests = record["tests"]
    left, passed = len(tests["not_run"]), len(tests["passed"])
    found = [
        Agreement("tests that were not run", str(left), "0", float(left > 0)),
        Agreement("tests that passed", str(passed), "some", float(passed == 0)),
    ]
    for name, case in record.get("hot", {}).items():
        # `none` leaves them where they were first put; others may miss a MiB.
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
        # Frames that are nobody's are given back many at a time.
        apart = max(counted - far, far - counted - NOBODYS, 0) / max(counted, 1)
        sides = (str(far), f"{counted} to {counted + NOBODYS}")
        found.append(Agreement(f"{name}: pages on node 1", *sides, apart))
    return found


def built(architecture: str, *words: str) -> dict[str, Path]:
    """What a command of cargo makes for an architecture, by name: programs, tests, libraries.

    Raises:
        NearfarError: it cannot be made (exit code 3).
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
    """A program without what only debuggers read."""
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
