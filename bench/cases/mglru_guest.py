"""Major faults under a memory limit in a guest, against `--replacement mglru`.

The guest runs ``limited.sh`` on Debian's Linux 6.12, which has multi-generational LRU.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, capture, row
from programs import HERE, PROGRAMS, Program
from table import recorded, summary

from cases.kernel_faults import errors, figures, signed_error, swap_ins
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node

NAME = "mglru-guest"
SUMMARY = "major faults in a guest with multi-generational LRU, against the prediction"

#: Memory sizes, percent of the program's anonymous pages.
PARTS = (50, 60, 70, 80, 90)
#: The policy under test, and others as controls.
OURS, OTHERS = "mglru", ("linux", "clock", "lru")
#: Programs, and the packages that they need in the guest. Left out: programs that this Python runs,
#: programs of several processes, and programs that take minutes under emulation.
PACKAGES = {
    "sort": ["coreutils"],
    "perl": ["perl-base"],
    "graph": ["libc6"],
    "cc1": ["cpp-12"],
}
#: Programs of a quick run, the scale of their input, and the memory sizes.
QUICK, QUICK_PART, QUICK_PARTS = ("graph",), 0.1, (90,)
#: Environment of the programs, in the guest (`limited.sh`) and when they are captured.
ENVIRONMENT = {"LC_ALL": "C", "PATH": "/usr/bin:/bin"}
#: Time limit of the guest for all programs, seconds.
TIMEOUT = 7200
#: Bytes of the guest's memory and swap.
MEMORY, SWAP = 1536 << 20, 1 << 30


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Count every program's faults at every size in one guest; then capture it and predict them."""
    chosen = {}
    for program in PROGRAMS:
        missing = program.missing()
        if program.name not in PACKAGES or (quick and program.name not in QUICK):
            continue
        if missing:
            inputs.remarks.append(f"{NAME}: {program.name} skipped: no {missing[0]}")
            continue
        folder = inputs.scratch / f"guest-{program.name}"
        folder.mkdir()
        chosen[folder] = program, program.make(folder, QUICK_PART if quick else 1)
    if not inputs.can_capture:
        inputs.remarks.append(f"{NAME} skipped: there is no QEMU to capture with")
        return []
    try:
        cells = measure(chosen, rounds, QUICK_PARTS if quick else PARTS)
    except NearfarError as error:
        inputs.remarks.append(f"{NAME} skipped: {error}")
        return []
    for folder, (program, command) in chosen.items():
        ask_model([c for c in cells if c["program"] == program.name], command, folder / "trace")
    inputs.cells += cells
    return rows(cells)


def measure(
    chosen: dict[Path, tuple[Program, list[str]]], rounds: int, parts: Iterable[int]
) -> list[dict[str, Any]]:
    """Run programs, by folder, in a guest; return a cell for each program and memory size."""
    lines, packages = [], set[str]()
    files: dict[str, Path | bytes] = {
        "/work/limited.sh": HERE.parent / "limited.sh",
        str(HERE): HERE,
    }
    for folder, (program, command) in chosen.items():
        # The folder lies elsewhere in the guest, which mounts its own /tmp.
        there = f"/work/{program.name}"
        files[there] = folder
        words = shlex.join(word.replace(str(folder), there) for word in command)
        lines.append(f"{program.name} {','.join(map(str, parts))} {rounds} {words}\n")
        packages.update(PACKAGES[program.name])
    files["/work/asked"] = "".join(lines).encode()
    done = Guest(
        "x86_64",
        Hardware((Node(memory=MEMORY, cpus=1),)),
        packages=sorted(packages),
        zram=SWAP,
        parameters=("transparent_hugepage=never", "norandmaps"),
    ).run(["sh", "limited.sh"], files=files, timeout=TIMEOUT)
    return parse(done.output.decode(errors="replace"))


def parse(text: str) -> list[dict[str, Any]]:
    """Parse the output of ``limited.sh`` into cells.

    ``kernel``: major faults of runs beside the polling shell; ``alone``: of runs without it.

    Raises:
        BenchError: the output is incomplete, or a program failed without a limit.
    """
    about: dict[str, str] = {}
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    lines = text.splitlines()
    if lines[-1:] != ["done"]:
        raise BenchError(f"limited.sh ended early: {' / '.join(lines[-2:])}")
    for line in lines[:-1]:
        what, *words = line.split()
        if what in ("lists", "kernel"):
            about[what] = words[0]
        elif what == "free":
            name, code, pages, kernel_bytes = words
            if code != "0":
                raise BenchError(f"{name}: ended with {code} in the guest, without a limit")
            about |= {"anonymous_pages": pages, "kernel_bytes": kernel_bytes}
        else:
            name, part, frames, polled, code, killed, major, file_bytes = words
            key = name, part
            cell = cells.setdefault(
                key,
                {
                    "case": NAME,
                    "program": name,
                    "part": int(part) / 100,
                    "frames": int(frames),
                    "anonymous_pages": int(about["anonymous_pages"]),
                    "kernel_bytes": int(about["kernel_bytes"]),
                    "lists": about["lists"],
                    "linux": about["kernel"],
                    "kernel": [],
                    "alone": [],
                    "killed": 0,
                    "file_bytes": 0,
                },
            )
            if code == "0" and killed == "0":
                cell["kernel" if polled == "1" else "alone"].append(int(major))
            else:
                cell["killed"] += 1
            cell["file_bytes"] = max(cell["file_bytes"], int(file_bytes))
    return [*cells.values()]


def ask_model(cells: list[dict[str, Any]], command: list[str], trace: Path) -> None:
    """Capture a program, and add predictions to its cells."""
    capture(command, trace, ENVIRONMENT, "--no-fetch")
    frames = {cell["frames"] for cell in cells}
    for cell in cells:
        cell["predicted"] = {}
    for policy in (OURS, *OTHERS):
        swappiness = ("--swappiness", kernel.SWAPPINESS) if policy in (OURS, "linux") else ()
        pages, found = swap_ins(trace, frames, policy, *swappiness)
        for cell in cells:
            cell["trace_pages"] = pages
            cell["predicted"][policy] = found[cell["frames"]]


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """The counts of each cell with the predictions, then the errors of all cells."""
    made = []
    for cell in cells:
        label = f"{cell['program']}, {cell['part']:.0%}, {cell['frames']} frames"
        said = ", ".join(f"{name} {count}" for name, count in cell["predicted"].items())
        said += f"; alone on the processor {spread(cell['alone'])}"
        if cell["kernel"]:
            made.append(row(NAME, label, cell["kernel"], "faults", note=f"predicted: {said}"))
    for policy in (OURS, *OTHERS):
        found = errors(cells, "kernel", policy)
        if found:
            made += figures(NAME, found, f"`{policy}`", goals=policy == OURS)
    made.append(
        row(NAME, "runs killed for lack of memory", [sum(c["killed"] for c in cells)], "runs")
    )
    return made


def overall() -> str:
    """The rows over all cells, by policy."""
    counted = ("signed error", "distance", "cells", "runs")
    return summary(one for one in recorded(NAME)["rows"] if one["name"].startswith(counted))


def every_cell() -> str:
    """The recorded cells as a table of the documentation."""
    return "\n".join(table(recorded(NAME)["cells"])) + "\n"


def table(cells: list[dict[str, Any]]) -> list[str]:
    """The cells as lines of Markdown."""
    lines = [
        "| program | memory | frames | kernel, alone | kernel | "
        + " | ".join(f"`{policy}`" for policy in (OURS, *OTHERS))
        + " |",
        "|---|---:|---:|---:|---:|" + "---:|" * (1 + len(OTHERS)),
    ]
    for cell in cells:
        said = []
        for policy in (OURS, *OTHERS):
            error = signed_error(cell, "kernel", policy)
            share = "" if error is None else f" ({error:+.0f} %)"
            said.append(f"{cell['predicted'][policy]:,}{share}")
        where = f"{cell['program']} | {cell['part']:.0%} | {cell['frames']:,}"
        counted = f"{spread(cell['alone'])} | {spread(cell['kernel'])}"
        lines.append(f"| {where} | {counted} | {' | '.join(said)} |")
    return lines


def spread(counts: list[int]) -> str:
    """The median of counts, with their range if they differ."""
    if not counts:
        return "not counted"
    between = f" ({min(counts):,} to {max(counts):,})" if len({*counts}) > 1 else ""
    return f"{statistics.median(counts):,.0f}{between}"


#: Tables of docs/validation.md, by name.
TABLES = {"figures": overall, "cells": every_cell}
