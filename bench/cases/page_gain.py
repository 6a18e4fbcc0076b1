"""Processor time that larger pages save on this machine, against `--view machine`."""

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

#: Scale of a program's input, and exceptions, for runs of 0.5 to 2 s of processor time.
PART, OTHER_PARTS = 3.0, {"cc1": 1.5, "shell": 1.0, "node": 2.0, "graph": 6.0}
#: Programs of a quick run, the scale of their input, and the page sizes.
QUICK, QUICK_PART, QUICK_SIZES = ("sort",), 0.1, (64 << 10,)
#: Repetitions for each round; each runs every page size once, with 4 KiB next to it.
TURNS = 2
#: The smallest order of free blocks that a virtual machine reports to its host, and the largest
#: value of this parameter.
REPORTING, LARGEST = Path("/sys/module/page_reporting/parameters/page_reporting_order"), "10"
#: Terms of the predicted time that are kernel time.
SYSTEM = ("fault_ns", "io_ns", "start_ns")
STUDY = ("--memory", "100%", "--lifetimes", "on", "--view", "machine")


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Measure the machine, then measure and predict each program."""
    found = ready(inputs, NAME, quick)
    if found is None:
        return []
    sizes, machine_file = found
    cells: list[dict[str, Any]] = []
    for program in PROGRAMS:
        missing = program.missing()
        if missing:
            inputs.remarks.append(f"{NAME}: {program.name} skipped: no {missing[0]}")
        elif not quick or program.name in QUICK:
            folder = inputs.scratch / f"gain-{program.name}"
            folder.mkdir()
            part = QUICK_PART if quick else OTHER_PARTS.get(program.name, PART)
            command = program.make(folder, part)
            tested = QUICK_SIZES if quick else sizes
            print(f"bench: {NAME}: {program.name}", file=sys.stderr)
            with kept_memory():
                found = measured(program, command, tested, TURNS * rounds)
            predict(found, command, folder / "trace", machine_file)
            cells += found
            # Captures with instruction fetches are large.
            shutil.rmtree(folder)
    inputs.cells += cells
    return rows(cells)


def ready(inputs: Inputs, name: str, quick: bool) -> tuple[list[int], Path] | None:
    """The page sizes of this machine, and its measured machine file; None, with a remark, if the
    case cannot run here."""
    try:
        sizes = [size for size in switches() if size <= 2 << 20]
    except NearfarError as error:
        inputs.remarks.append(f"{name} skipped: {error}")
        return None
    if os.geteuid() != 0 or not inputs.can_capture:
        why = "there is no QEMU to capture with" if os.geteuid() == 0 else "it needs root"
        inputs.remarks.append(f"{name} skipped: {why}")
        return None
    machine_file = inputs.scratch / "here.toml"
    words = nearfar("machine", "measure", "--storage", inputs.scratch, "--force")
    run([*words, "-o", machine_file, *(["--quick"] if quick else [])], discard=True)
    machine = machine_file.read_text(encoding="utf-8")
    if "[tlb.walk]" not in machine:
        why = "nothing is known of the page walks of this processor"
        inputs.remarks.append(f"{name} skipped: {why}")
        return None
    inputs.machine_file = machine
    return sizes, machine_file


@contextmanager
def kept_memory() -> Iterator[None]:
    """Stop this virtual machine from returning free memory to the host: getting it back would cost
    more than larger pages gain."""
    with undoing("reporting") as undo:
        if REPORTING.exists():
            undo.later("write", REPORTING, REPORTING.read_text(encoding="ascii").strip())
            # Report only the largest blocks, few of which become free.
            REPORTING.write_text(LARGEST, encoding="ascii")
        yield


def measured(
    program: Program, command: list[str], sizes: Sequence[int], turns: int
) -> list[dict[str, Any]]:
    """A cell for each page size: processor seconds of every turn, and huge pages obtained."""
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

    # Read the program's files into the page cache, and make the host allocate the memory.
    once(BASE)
    for turn in range(turns):
        order = list(sizes) if turn % 2 else list(reversed(sizes))
        # Run the base page size between two others, so that it is adjacent to both.
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
    """Capture the program unless there is a trace; predict its seconds on machine ``here``, by term
    of :data:`PARTS`."""
    if not trace.exists():
        capture(command, trace, kernel.ENVIRONMENT)
    sizes = ",".join(str(size) for size in (BASE, *(cell["page_bytes"] for cell in cells)))
    more = ("--machine", here, "--page-sizes", sizes, "--page-cache", cache, "--format", "json")
    found = run(nearfar("paging", trace, *STUDY, *more)).json()["rows"]
    rows = {each["page_bytes"]: each for each in found}
    for cell in cells:
        for name, size in (("predicted", cell["page_bytes"]), ("predicted_base", BASE)):
            cell[name] = {term: rows[size][term] * rows[size]["references"] / 1e9 for term in PARTS}
        cell["bloat_bytes"] = (
            rows[cell["page_bytes"]]["resident_bytes"] - rows[BASE]["resident_bytes"]
        )


def gains(cell: dict[str, Any]) -> list[float]:
    """Share of processor time that each turn saves over the adjacent turn of the base."""
    pairs = zip(cell["spent"], cell["base"], strict=True)
    return [1 - sum(spent) / sum(base) for spent, base in pairs]


def predicted_gain(cell: dict[str, Any]) -> float:
    """Share of the time that the page size is predicted to save."""
    return 1 - sum(cell["predicted"].values()) / sum(cell["predicted_base"].values())


def shown(cell: dict[str, Any]) -> bool:
    """Whether the measured gain or loss is significant: its interval excludes 0."""
    low, high = interval(gains(cell))
    return low > 0 or high < 0


def right_sign(cell: dict[str, Any]) -> bool:
    """Whether predicted and measured gain have the same sign."""
    return predicted_gain(cell) * statistics.median(gains(cell)) > 0


def near(cell: dict[str, Any]) -> bool:
    """Whether the predicted gain is within the error that `advise` assumes."""
    gain = statistics.median(gains(cell))
    return abs(predicted_gain(cell) - gain) <= gain_error(gain)


def inside(cell: dict[str, Any]) -> bool:
    """Whether the predicted gain lies in the interval of the measured gain."""
    low, high = interval(gains(cell))
    return low <= predicted_gain(cell) <= high


def apart(cell: dict[str, Any]) -> dict[str, float]:
    """Predicted minus measured gain in user time (``program``) and in kernel time (``kernel``).

    Each gain is a share of the whole processor time of the base.
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
    """The gain of each cell, and the accuracy of all predictions."""
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
