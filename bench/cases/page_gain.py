"""Processor time that larger pages gain on this machine, beside what `--view machine` predicts."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, alone, capture, interval, nearfar, row, run
from programs import PROGRAMS, Program
from undo import undoing

from nearfar.apply import counters
from nearfar.apply.measure import run as run_command
from nearfar.apply.setting import BASE, applied, short, switches
from nearfar.errors import NearfarError
from nearfar.gain_error import MIN_ERROR, gain_error
from nearfar.paging_findings import PARTS

NAME = "page-gain"
SUMMARY = "gains of page sizes that programs have on this machine, against the prediction"

#: Part of a program's size in `bench/programs`: half a second of processor time or two.
PART, OTHERWISE = 3.0, {"cc1": 1.5, "shell": 1.0, "node": 2.0, "graph": 6.0}
#: Programs of a quick run, the part of their size, and the page sizes.
QUICK, QUICK_PART, QUICK_SIZES = ("sort",), 0.1, (64 << 10,)
#: Turns, for each round that is asked for: every page size once, the base between every two.
TURNS = 2
#: From which size on the kernel tells a host of free memory: 2 to this power of pages.
REPORTING, LARGEST = Path("/sys/module/page_reporting/parameters/page_reporting_order"), "10"
#: Which parts of the time the kernel spends.
SYSTEM = ("fault_ns", "io_ns", "start_ns")
STUDY = ("--memory", "100%", "--lifetimes", "on", "--view", "machine")


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """The machine measured, then each program measured and predicted."""
    found = ready(inputs, NAME, quick)
    if found is None:
        return []
    sizes, here = found
    cells: list[dict[str, Any]] = []
    for program in PROGRAMS:
        missing = program.missing()
        if missing:
            inputs.remarks.append(f"{NAME}: {program.name} skipped: no {missing[0]}")
        elif not quick or program.name in QUICK:
            folder = inputs.scratch / f"gain-{program.name}"
            folder.mkdir()
            part = QUICK_PART if quick else OTHERWISE.get(program.name, PART)
            command = program.make(folder, part)
            asked = QUICK_SIZES if quick else sizes
            print(f"bench: {NAME}: {program.name}", file=sys.stderr)
            with kept_memory():
                found = measured(program, command, asked, TURNS * rounds)
            predict(found, command, folder / "trace", here)
            cells += found
            # A capture with its fetches is large.
            shutil.rmtree(folder)
    inputs.cells += cells
    return rows(cells)


def ready(inputs: Inputs, name: str, quick: bool) -> tuple[list[int], Path] | None:
    """The page sizes of this machine and a description of it; None, with a remark, without them."""
    try:
        sizes = [size for size in switches() if size <= 2 << 20]
    except NearfarError as error:
        inputs.remarks.append(f"{name} skipped: {error}")
        return None
    if os.geteuid() != 0 or not inputs.can_capture:
        why = "there is no QEMU to capture with" if os.geteuid() == 0 else "it needs root"
        inputs.remarks.append(f"{name} skipped: {why}")
        return None
    here = inputs.scratch / "here.toml"
    words = nearfar("machine", "measure", "--storage", inputs.scratch, "--force", "-o", here)
    run([*words, *(["--quick"] if quick else [])], discard=True)
    measured_here = here.read_text(encoding="utf-8")
    if "[tlb.walk]" not in measured_here:
        why = "nothing is known of the page walks of this processor"
        inputs.remarks.append(f"{name} skipped: {why}")
        return None
    inputs.machine_file = measured_here
    return sizes, here


@contextmanager
def kept_memory() -> Iterator[None]:
    """Free memory stays with this virtual machine: whether the host has to find it again would
    decide more than the page size does, and is another machine's business."""
    with undoing("reporting") as undo:
        if REPORTING.exists():
            undo.later("write", REPORTING, REPORTING.read_text(encoding="ascii").strip())
            # The largest blocks only, of which programs leave few.
            REPORTING.write_text(LARGEST, encoding="ascii")
        yield


def measured(
    program: Program, command: list[str], sizes: Sequence[int], turns: int
) -> list[dict[str, Any]]:
    """A cell for each page size: seconds of processor time of every turn, and what was obtained."""
    times: dict[int, list[list[float]]] = {size: [] for size in (BASE, *sizes)}
    cells = {
        size: {
            "program": program.name,
            "kind": program.kind,
            "page_bytes": size,
            "obtained": [],
            "base": [],
        }
        for size in sizes
    }
    words = [os.fspath(word) for word in alone(kernel.ENVIRONMENT, command)]

    def once(size: int) -> tuple[list[float], int]:
        with applied(size) as plan:
            before = counters(size)["huge_allocations"]
            ran = run_command(words, disable=plan.disable, sample=False, stdout=subprocess.DEVNULL)
            after = counters(size)["huge_allocations"]
        if ran.exit_code != 0:
            raise BenchError(f"{command[0]}: ended with {ran.exit_code}")
        return [ran.user_seconds, ran.system_seconds], (after or 0) - (before or 0)

    # Reads its files into the page cache, and has the host back the memory.
    once(BASE)
    for turn in range(turns):
        order = list(sizes) if turn % 2 else list(reversed(sizes))
        # The base between two others: it is next to both.
        for pair in (order[at : at + 2] for at in range(0, len(order), 2)):
            for size in (pair[0], BASE, *pair[1:]):
                spent, obtained = once(size)
                times[size].append(spent)
                if size != BASE:
                    cells[size]["obtained"].append(obtained)
            for size in pair:
                cells[size]["base"].append(times[BASE][-1])
    for size, cell in cells.items():
        cell["spent"] = times[size]
    return list(cells.values())


def predict(
    cells: list[dict[str, Any]], command: list[str], trace: Path, here: Path, cache: str = "warm"
) -> None:
    """Capture it if there is no trace, and add the terms of its time at each page size."""
    if not trace.exists():
        capture(command, trace, kernel.ENVIRONMENT)
    sizes = ",".join(str(size) for size in (BASE, *(cell["page_bytes"] for cell in cells)))
    asked = ("--machine", here, "--page-sizes", sizes, "--page-cache", cache, "--format", "json")
    found = run(nearfar("paging", trace, *STUDY, *asked)).json()["rows"]
    rows = {each["page_bytes"]: each for each in found}
    for cell in cells:
        for name, size in (("predicted", cell["page_bytes"]), ("predicted_base", BASE)):
            cell[name] = {term: rows[size][term] * rows[size]["references"] / 1e9 for term in PARTS}
        cell["bloat_bytes"] = (
            rows[cell["page_bytes"]]["resident_bytes"] - rows[BASE]["resident_bytes"]
        )


def gains(cell: dict[str, Any]) -> list[float]:
    """Part of the processor time that each turn gained over the base next to it."""
    pairs = zip(cell["spent"], cell["base"], strict=True)
    return [1 - sum(spent) / sum(base) for spent, base in pairs]


def predicted_gain(cell: dict[str, Any]) -> float:
    """Part of the time that the page size is predicted to gain."""
    return 1 - sum(cell["predicted"].values()) / sum(cell["predicted_base"].values())


def shown(cell: dict[str, Any]) -> bool:
    """Whether the measured gain or loss exceeds its interval."""
    low, high = interval(gains(cell))
    return low > 0 or high < 0


def right_sign(cell: dict[str, Any]) -> bool:
    """Whether a gain was predicted where one was measured, and a loss where one was."""
    return predicted_gain(cell) * statistics.median(gains(cell)) > 0


def near(cell: dict[str, Any]) -> bool:
    """Whether the prediction is as near to the measured gain as `advise` takes it to be."""
    gain = statistics.median(gains(cell))
    return abs(predicted_gain(cell) - gain) <= gain_error(gain)


def inside(cell: dict[str, Any]) -> bool:
    """Whether the predicted gain lies in the interval of what was measured."""
    low, high = interval(gains(cell))
    return low <= predicted_gain(cell) <= high


def apart(cell: dict[str, Any]) -> dict[str, float]:
    """How far predicted and measured gains are apart, of the program's own time and the kernel's.

    Parts of the processor time of the base, as measured and as predicted.
    """
    own = [term for term in cell["predicted"] if term not in SYSTEM]
    system = [term for term in cell["predicted"] if term in SYSTEM]
    whole = sum(cell["predicted_base"].values())
    found = {}
    for place, (name, terms) in enumerate((("program", own), ("kernel", system))):
        expected = sum(cell["predicted_base"][t] - cell["predicted"][t] for t in terms) / whole
        pairs = zip(cell["spent"], cell["base"], strict=True)
        gain = statistics.median((base[place] - spent[place]) / sum(base) for spent, base in pairs)
        found[name] = expected - gain
    return found


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """The gain of each cell, and how the predictions do over all."""
    made = []
    for cell in cells:
        found = [100 * gain for gain in gains(cell)]
        said = f"predicted: {100 * predicted_gain(cell):.2f} %"
        name = f"signed gain, {cell['program']}, {short(cell['page_bytes'])}"
        made.append(row(NAME, name, found, "%", note=said))
    if not cells:
        return made
    certain = [cell for cell in cells if shown(cell)]
    made.append(row(NAME, "cells", [len(cells)], "cells"))
    made.append(row(NAME, "cells whose gain or loss is shown", [len(certain)], "cells"))
    if certain:
        right = [100 * sum(map(right_sign, certain)) / len(certain)]
        made.append(row(NAME, "of them predicted with the right sign", right, "%", goal=">= 100"))
    within = [100 * sum(map(near, cells)) / len(cells)]
    note = f"within {MIN_ERROR:.0%} of the time, or a third of the measured gain, whichever is more"
    made.append(row(NAME, "cells predicted near enough", within, "%", goal=">= 80", note=note))
    either = [100 * sum(near(cell) or inside(cell) for cell in cells) / len(cells)]
    made.append(
        row(NAME, "cells near enough, or in the interval of what was measured", either, "%")
    )
    distance = [100 * abs(predicted_gain(c) - statistics.median(gains(c))) for c in cells]
    made.append(row(NAME, "distance of the predicted gain", distance, "points"))
    return made
