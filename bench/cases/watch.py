"""Swap-ins that ``nearfar watch`` predicts, against those that the kernel counts with less memory.

Each program serves requests at a steady rate. It is watched; then its control group is limited to
fractions of its anonymous memory, and swap-ins are counted. Methods that need another kernel run in
a guest, with fewer programs and requests.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, row
from programs import HERE
from table import figures, recorded

import nearfar
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node
from nearfar.watch.curve import Point, Prices, enough, of_cycles, of_refaults
from nearfar.watch.methods import ORDER
from nearfar.watch.samples import Refaults, WorkingSet

NAME = "watch"
SUMMARY = "what nearfar watch predicts, against swap-ins with less memory"

#: Programs, and a command that must be installed for each.
PROGRAMS = {
    "hot": "cc",
    "redis": "redis-server",
    "memcached": "memcached",
    "postgres": "initdb",
    "nginx": "nginx",
    "node": "node",
    "java": "javac",
    "sqlite": "sqlite3",
    "python": sys.executable,
    "numpy": sys.executable,
    "perl": "perl",
}
#: Programs of the guest, and their packages. The method `accessed` fails there: an emulated TLB
#: never evicts translations, so that cleared accessed bits are not set again.
GUEST = {
    "hot": "",
    "redis": "redis-server",
    "memcached": "memcached",
    "perl": "perl-base",
    "sqlite": "sqlite3",
}
#: Memory limits as shares of the anonymous memory, on the host and in the guest.
PARTS, GUEST_PARTS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4), (0.8, 0.6, 0.4)
#: nginx only uses a quarter of its memory after it has read its configuration.
OTHER_PARTS = {"nginx": (0.4, 0.37, 0.34, 0.31, 0.28, 0.25)}
#: Seconds until a program is in steady state: memcached moves an item in its LRU lists at most once
#: a minute, and Java touches new memory until its first garbage collection.
WARM = {"memcached": 75, "java": 75, "node": 30}
#: Arguments of ``measure.py``: requests a second, seconds of a watch, its share of a CPU, seconds
#: before a count, seconds of a count.
HOST_TIMES = {"rate": 3000, "seconds": 60, "budget": 0.05, "settle": 6, "count": 8}
GUEST_TIMES = {"rate": 500, "seconds": 60, "budget": 0.5, "settle": 15, "count": 20}
#: A quick run: one program, one part.
QUICK, QUICK_PARTS = ("hot",), (0.9,)
QUICK_TIMES = {"rate": 100, "seconds": 2, "budget": 0.5, "settle": 0.2, "count": 0.5}
#: Below this many faults a second, a cell is not judged.
FEW = 2.0
#: Share of cells for which the range of :func:`stated` holds.
WITHIN = 0.9
SWAP = 1 << 30
#: Checks of ``holds.py``.
CHECKS = ("regions", "squeezes", "killed")
#: Faults of one second each, so that the slowdown of a curve is its faults a second.
COUNTED = Prices(1e9, 1e9)
#: Arguments of ``holds.py``: MiB of a region of `steps.c`, seconds of each watch, number of
#: squeezes and seconds of each, watchers to kill for each method.
CHECK_ARGUMENTS = {
    "regions": [10, 20, 40, 80, 160],
    "seconds": 20,
    "squeezes": [100, 4],
    "kills": 8,
}
CHECK_ARGUMENTS_GUEST = {"methods": ["damon"], "group": "/sys/fs/cgroup/known", "folder": "/work"}
SOURCES = HERE / "watched"
HOT, STEPS = HERE.parent.parent / "tests" / "hot.c", HERE / "steps.c"
PACKAGE = Path(nearfar.__file__).parent


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Run all programs on the host, then some in a guest with the other methods."""
    del rounds
    lines: list[dict[str, Any]] = []
    try:
        where = kernel.controller(Path("/proc/mounts").read_text(encoding="ascii"))
        with kernel.swapping(SWAP):
            for name in QUICK if quick else PROGRAMS:
                if shutil.which(PROGRAMS[name]) is None:
                    inputs.remarks.append(f"{NAME}: {name} skipped: no {PROGRAMS[name]}")
                    continue
                lines += on_host(where, name, inputs.scratch, quick)
        if not quick:
            with kernel.limited_group(where, f"nearfar-bench-{os.getpid()}", None) as group:
                inputs.cells += checked_on_host(inputs.scratch, group)
    except kernel.Unavailable as error:
        inputs.remarks.append(f"{NAME} skipped: {error}")
        return []
    inputs.cells += cells(lines, "host")
    if not quick:
        try:
            inputs.cells += cells(in_guest(inputs.scratch), "guest")
            inputs.cells += checked_in_guest(inputs.scratch)
        except NearfarError as error:
            inputs.remarks.append(f"{NAME}: no guest: {error}")
    return rows(inputs.cells)


def built(source: Path, folder: Path) -> Path:
    """Compile a C source; the program's path."""
    made = folder / source.stem
    subprocess.run(["cc", "-O1", "-static", "-o", made, source], check=True)
    return made


def on_host(
    where: kernel.Controller, name: str, scratch: Path, quick: bool
) -> list[dict[str, Any]]:
    """The lines of ``measure.py`` for one program on this host."""
    print(f"bench: {NAME}: {name}", file=sys.stderr)
    folder = scratch / f"{NAME}-{name}"
    folder.mkdir(mode=0o755)
    scratch.chmod(0o755)  # PostgreSQL runs as another user
    if name == "hot":
        built(HOT, folder)
    with kernel.limited_group(where, f"nearfar-bench-{os.getpid()}", None) as group:
        arguments = {
            "program": name,
            "methods": ["accessed"],
            "parts": QUICK_PARTS if quick else OTHER_PARTS.get(name, PARTS),
            "warm": 0 if quick else WARM.get(name, 6),
            "folder": str(folder),
            "group": str(group),
            "package": str(PACKAGE),
            **(QUICK_TIMES if quick else HOST_TIMES),
        }
        words = [sys.executable, str(SOURCES / "measure.py"), json.dumps(arguments)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    return parsed(done.stdout, done.returncode, done.stderr)


def in_guest(scratch: Path) -> list[dict[str, Any]]:
    """The lines of ``measure.py`` for programs in a guest, by all methods but `accessed`."""
    script = []
    for name in GUEST:
        arguments = {
            "program": name,
            "methods": ORDER[1:],
            "parts": GUEST_PARTS,
            "warm": WARM.get(name, 10),
            "folder": f"/work/{name}.d",
            "group": f"/sys/fs/cgroup/{name}",
            "package": "/work/nearfar",
            **GUEST_TIMES,
        }
        script += [f"mkdir -p /work/{name}.d /sys/fs/cgroup/{name}"]
        script += [f"cp /work/hot /work/{name}.d"]
        script += [f"python3 /work/measure.py '{json.dumps(arguments)}'"]
    return guest(scratch, script, [package for package in GUEST.values() if package])


def checked_on_host(scratch: Path, group: Path) -> list[dict[str, Any]]:
    """The lines of ``holds.py`` on this host: programs whose working set is known."""
    arguments = {"package": str(PACKAGE), "folder": str(scratch), "group": str(group)}
    arguments |= {**CHECK_ARGUMENTS, "methods": ["accessed"], "squeezes": []}
    built(STEPS, scratch)
    words = [sys.executable, str(SOURCES / "holds.py"), json.dumps(arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return parsed(done.stdout, done.returncode, done.stderr)


def checked_in_guest(scratch: Path) -> list[dict[str, Any]]:
    """The lines of ``holds.py`` in a guest, with squeezes and killed watchers."""
    arguments = {"package": "/work/nearfar", **CHECK_ARGUMENTS, **CHECK_ARGUMENTS_GUEST}
    return guest(scratch, [f"python3 /work/holds.py '{json.dumps(arguments)}'"], [])


def guest(scratch: Path, script: Sequence[str], packages: Sequence[str]) -> list[dict[str, Any]]:
    """Run a script in a guest that has nearfar's methods and the bench's programs; its lines.

    Raises:
        NearfarError: a guest cannot run here, or the script fails.
    """
    print(f"bench: {NAME}: guest", file=sys.stderr)
    parts = [PACKAGE / file for file in ("__init__.py", "errors.py", "processes.py", "units.py")]
    files: dict[str, Path | bytes] = {
        f"/work/nearfar/{file.relative_to(PACKAGE)}": file
        for file in (*parts, *(PACKAGE / "watch").rglob("*.py"))
    }
    sources = [*SOURCES.glob("*.py"), *(built(source, scratch) for source in (HOT, STEPS))]
    files |= {f"/work/{file.name}": file for file in sources}
    settings = [
        "set -e",
        "echo +memory >/sys/fs/cgroup/cgroup.subtree_control",
        "echo 0 >/proc/sys/vm/page-cluster",
        "echo 200 >/proc/sys/vm/swappiness",
    ]
    files["/work/all.sh"] = "\n".join([*settings, *script, ""]).encode()
    done = Guest(
        "x86_64",
        Hardware((Node(memory=1 << 30, cpus=2),)),
        packages=["python3", *packages],
        zram=SWAP // 2,
        parameters=("transparent_hugepage=never",),
    ).run(["sh", "/work/all.sh"], files=files, timeout=7200)
    error = done.error.decode(errors="replace")
    return parsed(done.output.decode(errors="replace"), done.exit_code, error)


def parsed(text: str, code: int, errors: str) -> list[dict[str, Any]]:
    """Parse the lines of JSON that ``measure.py`` and ``holds.py`` print.

    Raises:
        BenchError: ``code`` is not 0.
    """
    if code != 0:
        raise BenchError(f"measure.py: {(errors.strip().splitlines() or [code])[-1]}")
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def cells(lines: Iterable[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """A cell for each program, method and memory limit."""
    watches, limits = ([line for line in lines if key in line] for key in ("method", "part"))
    return [
        {"where": where, **_cell(watched, limit)}
        for limit in limits
        for watched in watches
        if watched["program"] == limit["program"]
    ]


def curve(watched: dict[str, Any]) -> list[Point]:
    """A method's curve of faults a second on anonymous memory, by memory size."""
    if watched["refaults"]:
        seen = [replace(Refaults(**one), file=0.0, file_bytes=0) for one in watched["refaults"]]
        return of_refaults(seen, watched["seconds"] / len(seen), COUNTED)
    # Seconds and anonymous bytes; none of files.
    sets = [[WorkingSet(*one[:2], file=0.0) for one in cycle] for cycle in watched["cycles"]]
    return of_cycles(sets, COUNTED)


def _cell(watched: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
    points = curve(watched)
    # Faults a second at the request rate of the watch.
    faults = line["faults"] / max(line["requests"], 1) * watched["rate"]
    enough_for = enough(points, max(faults, FEW))
    predicted = faults_with(points, line["anonymous"])
    made = {key: watched[key] for key in ("program", "method", "cost")}
    made |= {
        "part": line["part"],
        "whole_bytes": line["whole"],
        "anonymous_bytes": round(line["anonymous"]),
        "measured": faults,
        "predicted": predicted,
        "faults_error": None,
        "memory_error": None,
    }
    if faults >= FEW and predicted is not None:
        made["faults_error"] = predicted / faults - 1
    # Outside this range of faults the answer is an end of the curve.
    if enough_for is not None and FEW <= faults <= points[0].faults:
        made["memory_error"] = enough_for.anonymous / line["anonymous"] - 1
    return made


def faults_with(points: Sequence[Point], memory: float) -> float | None:
    """Faults a second with ``memory`` bytes, interpolated log-linearly; None outside the curve."""
    for one, two in zip(points, points[1:], strict=False):
        if one.anonymous <= memory <= two.anonymous:
            part = (memory - one.anonymous) / max(two.anonymous - one.anonymous, 1)
            if two.faults <= 0:
                return 0.0 if part else one.faults
            return math.exp((1 - part) * math.log(one.faults) + part * math.log(two.faults))
    return None


def rows(found: Sequence[dict[str, Any]]) -> list[Row]:
    """Errors of each method, and results of the checks."""
    made = [*_checks([cell for cell in found if "check" in cell])]
    found = [cell for cell in found if "check" not in cell]
    for where, name in dict.fromkeys((cell["where"], cell["method"]) for cell in found):
        own = [cell for cell in found if (cell["where"], cell["method"]) == (where, name)]
        programs = _medians(own)
        if programs:
            title = f"error of faults, median of a program: {name}, {where}"
            made.append(row(NAME, title, programs, ""))
            good = sum(error <= 0.2 for error in programs)
            title = f"programs where it is at most 20 %: {name}, {where}"
            note = f"of {len(programs)}"
            made.append(
                row(NAME, title, [good], "", goal=">= 8" if where == "host" else "", note=note)
            )
            errors = [cell["faults_error"] for cell in own if cell["faults_error"] is not None]
            share = sum(abs(error) <= 0.2 for error in errors) / len(errors)
            title = f"cells within 20 % of the faults: {name}, {where}"
            made.append(row(NAME, title, [share], "of all"))
        for what in ("faults", "memory"):
            errors = [cell[f"{what}_error"] for cell in own]
            signed = [error for error in errors if error is not None]
            if signed:
                title = f"signed error of {what}: {name}, {where}"
                made.append(row(NAME, title, signed, "", note=f"{len(signed)} of {len(own)} cells"))
        made.append(row(NAME, f"cost: {name}, {where}", [cell["cost"] for cell in own], "of a CPU"))
    return made


def _medians(found: Sequence[dict[str, Any]]) -> list[float]:
    """The median magnitude of the error of faults, for each program."""
    errors: dict[str, list[float]] = {}
    for cell in found:
        if cell["faults_error"] is not None:
            errors.setdefault(cell["program"], []).append(abs(cell["faults_error"]))
    return [*map(statistics.median, errors.values())]


def _checks(found: Sequence[dict[str, Any]]) -> Iterator[Row]:
    of = {check: [cell for cell in found if cell["check"] == check] for check in CHECKS}
    for name in dict.fromkeys(cell["method"] for cell in of["regions"]):
        # Quantiles of the measured working sets, as shares of the region.
        for part in ("p50", "p75"):
            errors = [abs(cell[part] - 1) for cell in of["regions"] if cell["method"] == name]
            title = f"error of {part} of one region, 10 to 160 MiB: {name}"
            yield row(NAME, title, errors, "")
            yield row(NAME, f"the worst of them: {name}, {part}", [max(errors)], "", goal="<= 0.2")
    for cell in of["squeezes"]:
        yield row(NAME, "time stalled by a squeeze, guest", cell["stalled"], "")
        yield row(NAME, "the worst of them", [max(cell["stalled"])], "", goal="<= 0.02")
        yield row(NAME, "processes ended by squeezes", [cell["killed"]], "", goal="<= 0")
    if of["killed"]:
        changed = [len(cell["changed"]) + (not cell["alive"]) for cell in of["killed"]]
        yield row(NAME, "settings that a killed watcher leaves", [sum(changed)], "", goal="<= 0")


def stated(method: str) -> tuple[float, float]:
    """The range of the memory needed, as shares below and above a method's answer, that holds in
    :data:`WITHIN` of the cells."""
    errors = sorted(
        1 / (1 + cell["memory_error"]) - 1
        for cell in recorded(NAME)["cells"]
        if cell.get("method") == method and cell.get("memory_error") is not None
    )
    cut = int(len(errors) * (1 - WITHIN) / 2)
    # 0 if all errors between the cuts have the other sign.
    return max(-errors[cut], 0.0), max(errors[-1 - cut], 0.0)


def every_cell() -> str:
    """All cells as Markdown, the largest error of faults first."""
    lines = [
        "| program | method | where | part | memory | measured | predicted | faults | memory |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]

    def worst(cell: dict[str, Any]) -> tuple[int, float]:
        error = cell["faults_error"]
        return error is None, -abs(error or 0.0)

    def text(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    cells = [cell for cell in recorded(NAME)["cells"] if "check" not in cell]
    for cell in sorted(cells, key=worst):
        words = [f"`{cell['program']}`", f"`{cell['method']}`", cell["where"]]
        words += [f"{cell['part']:.0%}", f"{cell['anonymous_bytes'] / 2**20:.1f} MiB"]
        words += [text(cell["measured"], ".0f"), text(cell["predicted"], ".0f")]
        words += [text(cell["faults_error"], "+.0%"), text(cell["memory_error"], "+.0%")]
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


#: Tables of docs/validation.md, by name.
TABLES = {"cells": every_cell, "figures": figures(NAME)}
