"""Major faults under a memory limit: the kernel's counts against `--replacement linux`."""

from __future__ import annotations

import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, capture, nearfar, row, run
from programs import PROGRAMS, Program

NAME = "kernel-faults"
SUMMARY = "major faults of programs under a memory limit with zram, against the prediction"

#: Memory sizes, as shares of the program's anonymous pages.
FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9)
#: Programs of a quick run, and the scale of their input.
QUICK, QUICK_PART = ("sort",), 0.1
#: Maximum runs for each round, because the OOM killer may end some.
TRIES = 2
#: Cells with fewer faults are not judged: one batch of reclaim would be most of their error.
FEWEST = 64
#: Tolerances of errors, percent.
NEAR = (10, 25)
#: Predictions: policy and its options. The kernel updates control-group statistics every two
#: seconds or when they are read: never in a short program (`old`), always if polled (`exact`).
PREDICTED = {
    "old": ("linux", ("--statistics-every", "0", "--swappiness", kernel.SWAPPINESS)),
    "exact": ("linux", ("--statistics-every", "1", "--swappiness", kernel.SWAPPINESS)),
    "clock": ("clock", ()),
}
#: Differences in frames of further predictions: the kernel reclaims 32 pages at once.
AROUND = (-32, -16, 0, 16, 32)
#: Stands for the prediction that fits a run: `exact` if statistics were updated in it, else `old`.
OWN = "own"
#: Key of counts in a cell, and of their prediction: statistics not polled, and polled.
MAIN, SECOND = ("kernel", OWN), ("polled", "exact")
#: Comparisons of counts with a prediction, and their labels. Only MAIN has goals.
COMPARED = {
    MAIN: "`linux`, kernel not polled",
    ("kernel", "old"): "`linux` as if never renewed, kernel not polled",
    ("steady", "old"): "`linux`, kernel not polled, statistics not renewed",
    SECOND: "`linux`, kernel polled",
    ("polled", "clock"): "`clock`, kernel polled",
}


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Count each program's faults without and under limits; capture it and predict the faults."""
    cells: list[dict[str, Any]] = []
    try:
        where = kernel.controller(Path("/proc/mounts").read_text())
        if not inputs.can_capture:
            raise kernel.Unavailable("there is no QEMU to capture with")
        for program in PROGRAMS:
            missing = program.missing()
            if missing:
                inputs.remarks.append(f"{NAME}: {program.name} skipped: no {missing[0]}")
            elif not quick or program.name in QUICK:
                print(f"bench: {NAME}: {program.name}", file=sys.stderr)
                folder = inputs.scratch / program.name
                folder.mkdir()
                command = program.make(folder, QUICK_PART if quick else 1)
                found = ask_kernel(where, program, command, rounds)
                ask_model(found, command, folder / "program.trace")
                cells += found
    except kernel.Unavailable as error:
        inputs.remarks.append(f"{NAME} skipped: {error}")
        return []
    inputs.cells += cells
    return rows(cells)


def ask_kernel(
    where: kernel.Controller, program: Program, command: list[str], rounds: int
) -> list[dict[str, Any]]:
    """A cell for each memory size: counts of ``rounds`` unpolled and as many polled runs."""
    group = f"nearfar-bench-{os.getpid()}"
    with kernel.swapping(1 << 30) as lists:
        # Read the program and its input into the page cache, charged to no limited group.
        kernel.run_limited(where, command, None, group, poll=False)
        free = kernel.run_limited(where, command, None, group, poll=True)
        if free.exit_code != 0:
            raise BenchError(f"{command[0]}: ended with {free.exit_code} without a limit")
        cells = [
            {
                "program": program.name,
                "kind": program.kind,
                "part": fraction,
                "frames": int(free.anonymous_pages * fraction),
                "anonymous_pages": free.anonymous_pages,
                "kernel_bytes": free.kernel_bytes,
                "kernel_usual_bytes": free.kernel_usual_bytes,
                "swappiness": int(kernel.SWAPPINESS),
                "lists": lists,
                "cgroup": where.version,
            }
            for fraction in FRACTIONS
        ]
        for cell in cells:
            limit = cell["frames"] * kernel.PAGE + free.kernel_bytes
            for how in ("kernel", "polled"):
                ran: list[kernel.Finished] = []
                while sum(map(ended_well, ran)) < rounds and len(ran) < TRIES * rounds:
                    poll = how == "polled"
                    ran.append(kernel.run_limited(where, command, limit, group, poll=poll))
                well = [one for one in ran if ended_well(one)]
                cell[how] = [one.major for one in well]
                cell[f"{how}_killed"] = len(ran) - len(well)
                if how == "kernel":
                    cell["steady"] = [one.major for one in well if not one.updated]
                    cell["file_bytes"] = max(one.file_bytes for one in ran)
    return cells


def ask_model(cells: list[dict[str, Any]], command: list[str], trace: Path) -> None:
    """Capture a program, and add predictions to its cells."""
    capture(command, trace, kernel.ENVIRONMENT, "--no-fetch")
    predict(cells, trace)


def ended_well(ran: kernel.Finished) -> bool:
    """Whether the program succeeded, and the OOM killer ended no process."""
    return ran.exit_code == 0 and ran.killed == 0


def pairs(cell: dict[str, Any], counts: str, predicted: str) -> list[tuple[int, str]]:
    """Each count of a cell with the key of its prediction.

    The `steady` counts are those of runs in which statistics were not updated.
    """
    if predicted != OWN:
        return [(count, predicted) for count in cell[counts]]
    updated = Counter(cell[counts]) - Counter(cell["steady"])
    old = [(count, "old") for count in cell["steady"]]
    return [*old, *((count, "exact") for count in updated.elements())]


def signed_error(cell: dict[str, Any], counts: str, predicted: str) -> float | None:
    """Median error of the prediction, percent; positive if too high. None: too few faults."""
    found = pairs(cell, counts, predicted)
    if not found or statistics.median(count for count, _ in found) < FEWEST:
        return None
    if len({name for _, name in found}) == 1:
        count = statistics.median(count for count, _ in found)
        return 100 * (cell["predicted"][found[0][1]] - count) / count
    return statistics.median(
        100 * (cell["predicted"][name] - count) / count for count, name in found
    )


def errors(cells: Iterable[dict[str, Any]], counts: str, predicted: str) -> list[float]:
    """The signed errors that are not None."""
    found = (signed_error(cell, counts, predicted) for cell in cells)
    return [error for error in found if error is not None]


def share(found: list[float], near: int) -> float:
    """Percent of the errors whose magnitude is at most ``near`` percent."""
    return 100 * sum(abs(error) <= near for error in found) / len(found)


def figures(case: str, found: list[float], label: str, *, goals: bool) -> list[Row]:
    """Rows of all errors of one prediction, with or without goals."""
    made = [row(case, f"signed error, all, {label}", found, "%")]
    distance = [abs(statistics.median(found))]
    goal = "<= 10" if goals else ""
    made.append(row(case, f"distance of that from 0, {label}", distance, "%", goal=goal))
    for near in NEAR:
        goal = ">= 90" if goals and near == NEAR[-1] else ""
        within = [share(found, near)]
        made.append(row(case, f"cells within {near} %, {label}", within, "%", goal=goal))
    return [*made, row(case, f"cells judged, {label}", [len(found)], "cells")]


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """The errors of each program, then those of all cells."""
    made = []
    for name in dict.fromkeys(cell["program"] for cell in cells):
        for compared in (MAIN, SECOND):
            found = errors((cell for cell in cells if cell["program"] == name), *compared)
            if found:
                how = "polled" if compared == SECOND else "not polled"
                made.append(row(NAME, f"signed error, {name}, {how}", found, "%"))
    for compared, label in COMPARED.items():
        found = errors(cells, *compared)
        if not found:
            continue
        made += figures(NAME, found, label, goals=compared == MAIN)
    made.append(row(NAME, "cells", [len(cells)], "cells", note=conditions(cells)))
    for how, label in (("kernel", "not polled"), ("polled", "polled")):
        killed = sum(cell[f"{how}_killed"] for cell in cells)
        made.append(row(NAME, f"runs killed for lack of memory, {label}", [killed], "runs"))
    return made


def conditions(cells: list[dict[str, Any]]) -> str:
    """The conditions of the measurement: control groups, LRU lists, swap, limits."""
    first = cells[0]
    parts = ", ".join(f"{part:.0%}" for part in FRACTIONS)
    charged = max(cell["file_bytes"] for cell in cells)
    return (
        f"control group version {first['cgroup']}, {first['lists']}, swap on zram, "
        f"vm.page-cluster 0, swappiness {first['swappiness']}; limits: {parts} of the program's "
        f"anonymous pages, and what the kernel itself uses for it; at most {charged} bytes of "
        "files charged"
    )


#: Options of `nearfar paging`. Files stay in the page cache, charged to another group.
STUDY = (
    *("--lifetimes", "on", "--page-cache", "elsewhere", "--page-sizes", "4K"),
    *("--view", "paper", "--format", "json"),
)
#: Any device would do, because only the number of faults is used.
DEVICE = ("--machine", "desktop-nvm", "--storage", "nvm-1x")


def predict(cells: list[dict[str, Any]], trace: Path) -> None:
    """Add to each cell the predicted swap-ins, and the peak pages of the trace."""
    for cell in cells:
        cell["predicted"], cell["around"] = {}, {}
    for name, (policy, options) in PREDICTED.items():
        near = (*AROUND, *spare(cells[0])) if policy == "linux" else (0,)
        frames = {cell["frames"] + more for cell in cells for more in near}
        whole, found = swap_ins(trace, frames, policy, *options)
        for cell in cells:
            cell["predicted"][name] = found[cell["frames"]]
            cell["around"][name] = [found[cell["frames"] + more] for more in near]
            cell["trace_pages"] = whole


def spare(cell: dict[str, Any]) -> list[int]:
    """Further frames to predict for: quarters of the kernel memory that the limit allows for (its
    peak) but the program usually does not use."""
    pages = (cell["kernel_bytes"] - cell["kernel_usual_bytes"]) // kernel.PAGE
    return [pages * part // 4 for part in range(1, 5) if pages * part // 4 > AROUND[-1]]


def swap_ins(
    trace: Path, frames: Iterable[int], policy: str, *options: str
) -> tuple[int, dict[int, int]]:
    """The peak pages of a trace, and its swap-ins by number of frames."""
    sizes = ["100%", *(str(each * kernel.PAGE) for each in sorted(frames))]
    memory = ("--memory", ",".join(sizes), *DEVICE)
    words = nearfar("paging", trace, *STUDY, *memory, "--replacement", policy, *options)
    rows = run(words).json()["rows"]
    # Only the row of "100%" has a fraction: the other sizes are given in bytes.
    peak = next(each["frames"] for each in rows if each["memory_fraction"] is not None)
    return peak, {each["frames"]: each["swap_ins"] for each in rows}
