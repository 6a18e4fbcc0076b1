"""Predicted and measured gains of larger pages on first access to files and memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import Row, alone, interval, percent, row, run
from programs import HERE
from table import recorded

from cases.page_gain import gains, kept_memory, near, predict, predicted_gain, ready
from nearfar.apply.setting import BASE, applied, short

NAME = "first-access"
SUMMARY = "gains of page sizes with cold files and with memory that is first read or first written"

#: Bytes of the file, and of a quick run's.
FILE, QUICK_FILE = 32 << 20, 4 << 20
SIZES, QUICK_SIZES = (64 << 10, 2 << 20), (64 << 10,)
#: Repetitions for each round.
TURNS = 3
#: Mode of ``programs/first.c`` (r, w: memory whose first access is a read, a write), and whether
#: its file, if any, is in the page cache (warm) at the start.
PROGRAMS = (
    ("read", "cold"),
    ("read", "warm"),
    ("mapped", "cold"),
    ("mapped", "warm"),
    ("r", "warm"),
    ("w", "warm"),
)


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Measure and predict each program; in wall time, because cold files wait for the disk."""
    found = ready(inputs, NAME, quick)
    if found is None:
        return []
    offered, machine_file = found
    compiler = shutil.which("gcc")
    if compiler is None:
        inputs.remarks.append(f"{NAME} skipped: no gcc")
        return []
    program, file = inputs.scratch / "first", inputs.scratch / "file"
    run([compiler, "-O2", "-o", program, HERE / "first.c"])
    file.write_bytes(os.urandom(QUICK_FILE if quick else FILE))
    with file.open("rb") as opened:
        # Only clean pages can be dropped from the page cache.
        os.fsync(opened.fileno())
    sizes = [size for size in (QUICK_SIZES if quick else SIZES) if size in offered]
    cells: list[dict[str, Any]] = []
    for mode, cache in PROGRAMS:
        arguments = [mode, str(file)] if mode in ("read", "mapped") else ["memory", mode]
        command = [str(program), *arguments]
        print(f"bench: {NAME}: {mode}, {cache}", file=sys.stderr)
        with kept_memory():
            own = measured(command, sizes, TURNS * rounds, file if cache == "cold" else None)
        for cell in own:
            cell |= {"program": mode, "cache": cache}
        predict(own, command, inputs.scratch / f"{mode}.trace", machine_file, cache)
        cells += own
    inputs.cells += cells
    return rows(cells)


def measured(
    command: list[str], sizes: list[int], turns: int, cold: Path | None
) -> list[dict[str, Any]]:
    """A cell for each page size: seconds of every turn, with this size and with 4 KiB pages.

    ``cold``: a file to drop from the page cache before each run.
    """
    words = [os.fspath(word) for word in alone(kernel.ENVIRONMENT, command)]

    def once(size: int) -> list[float]:
        if cold is not None:
            with cold.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with applied(size):
            began = time.monotonic()
            subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
            return [time.monotonic() - began]

    once(BASE)  # warm-up
    cells: list[dict[str, Any]] = [{"page_bytes": size, "spent": [], "base": []} for size in sizes]
    for _ in range(turns):
        for cell in cells:
            cell["base"].append(once(BASE))
            cell["spent"].append(once(cell["page_bytes"]))
    return cells


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """The gain of each cell with its prediction, and the share of cells within tolerance."""
    made = []
    for cell in cells:
        found = [100 * gain for gain in gains(cell)]
        low, high = interval(found)
        note = f"predicted: {100 * predicted_gain(cell):.1f} %; interval {low:.1f} to {high:.1f} %"
        name = f"signed gain, {cell['program']} {cell['cache']}, {short(cell['page_bytes'])}"
        made.append(row(NAME, name, found, "%", note=note))
    if cells:
        within = [100 * sum(map(near, cells)) / len(cells)]
        made.append(row(NAME, "cells predicted near enough", within, "%"))
    return made


def gain_table() -> str:
    """A line for each cell: measured gain with its interval, and predicted gain, percent."""
    lines = ["| program | files | page | measured | predicted |", "|---|---|---|---:|---:|"]
    for cell in recorded(NAME)["cells"]:
        words = [f"`first {cell['program']}`", cell["cache"], short(cell["page_bytes"])]
        words += [percent(gains(cell)), f"{100 * predicted_gain(cell):+.1f}"]
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


#: Tables of docs/validation.md, by name.
TABLES = {"gains": gain_table}
