"""Output of real programs under `nearfar run` with little fast memory, compared with plain runs.

Each program first runs alone, for its output and the memory that its largest process needs. Then
it runs with fractions of that memory, under each policy and far tier.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from inputs import Inputs
from measure import BenchError, Row, row
from programs import HERE
from table import recorded

from nearfar import live
from nearfar.apply.measure import kib
from nearfar.processes import process_tree
from nearfar.run_folder import open_run

NAME = "real-programs"
SUMMARY = "real programs under nearfar run with little fast memory: the same output?"

#: Fast memory as shares of what a process needs, policies (`ssp`: selective shadow paging, paper
#: 003), and far tiers.
PARTS, POLICIES, TIERS = (0.25, 0.5, 0.75), ("ssp", "nomad"), ("zstd", "file")
QUICK_PARTS, QUICK_POLICIES, QUICK_TIERS = (0.25,), ("ssp",), ("zstd",)
#: Programs of a quick run.
QUICK = ("numpy", "sqlite")
#: Time limit of a cell, seconds.
TIMEOUT = 60
#: Number of Redis servers that load the same dump, and of busy processes beside them.
LOADS, BUSY = 200, 6
SOURCES = HERE / "live"
#: By name: description, commands that build it, and its command. `{here}` is the folder of
#: sources, `{made}` that of build results, `{folder}` a new folder.
PROGRAMS: dict[str, tuple[str, list[list[str]], list[str]]] = {
    "numpy": ("arrays, in Python", [], [sys.executable, "{here}/arrays.py"]),
    "sqlite": (
        "a database, with its integrity check", [],
        ["sqlite3", ":memory:", ".read {here}/queries.sql"],
    ),
    "redis": (
        "a server that saves a dump while keys are written, and another that loads it", [],
        [sys.executable, "{here}/redis.py", "{folder}", "40000"],
    ),
    "postgres": (
        "a database, alone and as a server with two clients", [],
        [sys.executable, "{here}/postgres.py", "{folder}/postgres", "{here}/postgres.sql"],
    ),
    "gcc": (
        "a compiler", [],
        ["g++", "-std=c++17", "-O1", "-S", "-o", "-", "{here}/templates.cc"],
    ),
    "java": (
        "a virtual machine with a collector",
        [["javac", "-d", "{made}", "{here}/Objects.java"]],
        ["java", "-Xmx96m", "-cp", "{made}", "Objects"],
    ),
    "go": (
        "goroutines and a collector; dynamic",
        [["go", "build", "-buildmode=pie", "-ldflags=-linkmode=external", "-o", "{made}/dynamic",
          "{here}/objects.go"]],
        ["{made}/dynamic"],
    ),
    "forks": ("a process and its copies, in Python", [], [sys.executable, "{here}/forks.py"]),
}  # fmt: skip
#: Builds a static program, which `nearfar run` refuses.
STATIC = ["go", "build", "-o", "{made}/static", "{here}/objects.go"]


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Run all programs alone, then each cell once a round."""
    if (why := live.refused()) is not None:
        inputs.remarks.append(f"{NAME} skipped: {why}")
        return []
    parts, policies, tiers = (
        (QUICK_PARTS, QUICK_POLICIES, QUICK_TIERS) if quick else (PARTS, POLICIES, TIERS)
    )
    cells: list[dict[str, Any]] = []
    for name in QUICK if quick else PROGRAMS:
        print(f"bench: {NAME}: {name}", file=sys.stderr)
        what, steps, command = PROGRAMS[name]
        made = inputs.scratch / name
        made.mkdir()
        if not all(_prepared(inputs, name, step, made) for step in [*steps, command[:1]]):
            continue
        expected, needs, seconds = alone(command, made)
        for part, policy, tier in product(parts, policies, tiers):
            fast = max(1 << 20, int(needs * part) // 4096 * 4096)
            for _ in range(rounds):
                cell = {"program": name, "what": what, "needs_bytes": needs, "alone": seconds}
                cell |= {"part": part, "fast_bytes": fast, "policy": policy, "far": tier}
                cell |= managed(command, made, fast, policy, tier, expected)
                cells.append(cell)
                print(f"bench: {json.dumps(cell)}", file=sys.stderr)
    if not quick:
        cells += many_loads(inputs) + refused(inputs)
    inputs.cells += cells
    return rows(cells)


def rows(cells: Sequence[dict[str, Any]]) -> list[Row]:
    """The number of cells by outcome."""
    made = []
    for outcome, goal in (("same", ""), ("different", "<= 0"), ("ended", "<= 0"), ("late", "")):
        count = sum(cell["outcome"] == outcome for cell in cells)
        made.append(row(NAME, f"runs: {outcome}", [count], "", goal=goal))
    return made if cells else []


def _filled(words: Sequence[str], made: Path, folder: Path) -> list[str]:
    names = {"{here}": str(SOURCES), "{made}": str(made), "{folder}": str(folder)}
    filled = []
    for word in words:
        for name, text in names.items():
            word = word.replace(name, text)
        filled.append(word)
    return filled


def _prepared(inputs: Inputs, name: str, step: Sequence[str], made: Path) -> bool:
    """Run a step of the build; a step of one word is only looked up.

    False, with a remark, if its program is not installed.
    """
    words = _filled(step, made, made)
    if words[0].startswith(str(made)):
        return True
    if shutil.which(words[0]) is None:
        inputs.remarks.append(f"{NAME}: {name} skipped: no {words[0]}")
        return False
    if len(words) == 1:
        return True
    done = subprocess.run(words, capture_output=True, text=True, cwd=made)
    if done.returncode != 0:
        raise BenchError(f"{NAME}: {name}: {done.stderr.strip().splitlines()[-1]}")
    return True


def alone(command: Sequence[str], made: Path) -> tuple[str, int, float]:
    """Run a command without nearfar: digest of its output, peak private memory of its largest
    process, seconds."""
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as output:
        folder = Path(scratch)
        folder.chmod(0o755)  # PostgreSQL runs as `nobody`
        began = time.monotonic()
        child = subprocess.Popen(_filled(command, made, folder), stdout=output, cwd=folder)
        most = 0
        while child.poll() is None:
            tree = process_tree(child.pid)
            most = max([most, *(kib(pid, "status", "RssAnon:") << 10 for pid in tree)])
            time.sleep(0.005)
        if child.returncode != 0:
            raise BenchError(f"{NAME}: {command[0]} alone ended with {child.returncode}")
        output.seek(0)
        return _digest(output.read()), most, time.monotonic() - began


def _digest(output: bytes) -> str:
    return hashlib.sha256(output).hexdigest()


def managed(
    command: Sequence[str],
    made: Path,
    fast: int,
    policy: str,
    tier: str,
    expected: str,
    timeout: int = TIMEOUT,
) -> dict[str, Any]:
    """One run under nearfar: its outcome, seconds and counters.

    The outcome is ``same`` or ``different`` output, ``ended`` if it failed, ``late`` if too slow.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, run_folder = Path(scratch), Path(scratch) / "told.run"
        folder.chmod(0o777)
        far = f"file:{folder}/far" if tier == "file" else tier
        words = [sys.executable, "-m", "nearfar", "run", "--fast", str(fast), "--far", far]
        words += ["--policy", policy, "-o", str(run_folder), "--", *_filled(command, made, folder)]
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            child = subprocess.Popen(
                words, stdout=output, stderr=errors, cwd=folder, start_new_session=True
            )
            try:
                child.wait(timeout)
            except subprocess.TimeoutExpired:
                for pid in reversed(process_tree(child.pid)):
                    os.kill(pid, signal.SIGKILL)
                child.wait()
                return {"outcome": "late", "seconds": timeout, "why": ""}
            output.seek(0)
            errors.seek(0)
            digest, messages = _digest(output.read()), errors.read().decode(errors="replace")
        if not run_folder.exists():
            return {"outcome": "ended", "seconds": 0.0, "why": messages.strip()[-300:]}
        found = json.loads(open_run(run_folder).result.to_json())
    same = "same" if digest == expected and found["exit_code"] == 0 else "different"
    seen = found["counters"]
    return {
        "outcome": "ended" if found["why"] or found["exit_code"] else same,
        "why": found["why"] or (messages.strip()[-300:] if found["exit_code"] else ""),
        "seconds": round(found["seconds"], 2),
        "processor_seconds": round(found["user_seconds"] + found["system_seconds"], 2),
        "images": found["images"],
        "forks": seen["forks"],
        "loads": seen["far_loads"],
        "stores": seen["far_stores"],
        "promotions": seen["promotions"],
        "over_budget": seen["over_budget"],
        "pinned": seen["pinned"],
    }


def many_loads(inputs: Inputs) -> list[dict[str, Any]]:
    """A cell of :data:`LOADS` servers that load a dump, next to :data:`BUSY` busy processes."""
    if shutil.which("redis-server") is None:
        return []
    command = [sys.executable, "{here}/redis.py", "{folder}", "8000"]
    _, needs, seconds = alone(command, inputs.scratch)
    expected = alone([*command, str(LOADS)], inputs.scratch)[0]
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
    try:
        words, fast = [*command, str(LOADS)], needs // 4
        made = managed(words, inputs.scratch, fast, "ssp", "zstd", expected, timeout=3 * LOADS)
    finally:
        for child in busy:
            child.kill()
            child.wait()
    what = f"{LOADS} loads of a dump, {BUSY} busy processes beside them"
    cell = {"program": "redis-loads", "what": what, "needs_bytes": needs, "alone": seconds}
    cell |= {"part": 0.25, "fast_bytes": needs // 4, "policy": "ssp", "far": "zstd"}
    return [cell | made]


def refused(inputs: Inputs) -> list[dict[str, Any]]:
    """A cell of a static program: whether `nearfar run` refuses it, and its message."""
    if shutil.which("go") is None:
        return []
    _prepared(inputs, "static", STATIC, inputs.scratch)
    words = [sys.executable, "-m", "nearfar", "run", "--fast", "64M", "--"]
    done = subprocess.run([*words, str(inputs.scratch / "static")], capture_output=True, text=True)
    line = done.stderr.strip().replace(str(inputs.scratch), "...")
    ok = done.returncode == 2 and "\n" not in line and not done.stdout
    cell = {"program": "go-static", "what": "a static program", "needs_bytes": 0, "alone": 0.0}
    cell |= {"part": 0.0, "fast_bytes": 64 << 20, "policy": "ssp", "far": "zstd", "seconds": 0.0}
    return [cell | {"outcome": "refused" if ok else "different", "why": line}]


def every_cell() -> str:
    """A line for each program and part: seconds alone, and with each policy and far tier."""
    found: dict[tuple[Any, ...], dict[tuple[str, str], str]] = {}
    for cell in recorded(NAME)["cells"]:
        key = (cell["program"], cell["needs_bytes"], cell["alone"], cell["part"])
        found.setdefault(key, {})[cell["policy"], cell["far"]] = _shown(cell)
    kinds = [*product(POLICIES, TIERS)]
    named = " | ".join(f"{policy}, {far}" for policy, far in kinds)
    lines = [
        f"| program | needs | alone | fast | {named} |",
        "|---|---:|---:|---:" + "|---:" * 4 + "|",
    ]
    for (name, needs, seconds, part), own in found.items():
        words = [f"`{name}`", f"{needs / 2**20:.0f} MiB", f"{seconds:.1f} s", f"{part:.0%}"]
        words += [own.get(kind, "") for kind in kinds]
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def _shown(cell: dict[str, Any]) -> str:
    """The seconds of a cell with the same output, else its outcome."""
    outcome: str = cell["outcome"]
    return f"{cell['seconds']:.1f} s" if outcome == "same" else outcome


#: Tables of docs/validation.md, by name.
TABLES = {"cells": every_cell}
