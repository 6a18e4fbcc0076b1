"""Major faults that the kernel counts, beside what `--replacement linux` predicts."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, nearfar, row, run
from programs import PROGRAMS, Program

NAME = "kernel-faults"
SUMMARY = "major faults of programs under a memory limit with zram, against the prediction"

#: Memory sizes, as parts of the program's anonymous pages.
FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9)
#: The policy that is read from the kernel, and others, to see what the comparison can tell apart.
OURS, OTHERS = "linux", ("clock", "lru")
#: Programs of a quick run, and the part of their size.
QUICK, QUICK_PART = ("sort",), 0.1
#: Runs of a memory size, for each that is asked for, before what is killed stays without a count.
TRIES = 2
#: A cell with fewer faults is not judged by its error: one batch more or less is most of it.
FEWEST = 64
#: Of the share of cells that are near enough.
NEAR = (10, 25)


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Every program: without a limit, captured, then at every size."""
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
    """The cells of one program: what the kernel counts, ``rounds`` times not polled, once polled."""
    group = f"nearfar-bench-{os.getpid()}"
    with kernel.swapping(1 << 30) as lists:
        # Brings the program and its input into the page cache, outside of any limited group.
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
                "swappiness": int(kernel.SWAPPINESS),
                "lists": lists,
                "cgroup": where.version,
            }
            for fraction in FRACTIONS
        ]
        for cell in cells:
            limit = cell["frames"] * kernel.PAGE + free.kernel_bytes
            for how, poll in (("kernel", False), ("polled", True)):
                ran: list[kernel.Finished] = []
                wanted = 1 if poll else rounds
                while sum(map(ended_well, ran)) < wanted and len(ran) < TRIES * wanted:
                    ran.append(kernel.run_limited(where, command, limit, group, poll=poll))
                cell[how] = [one.major for one in ran if ended_well(one)]
                cell[f"{how}_killed"] = len(ran) - len(cell[how])
                if not poll:
                    cell["file_bytes"] = max(one.file_bytes for one in ran)
    return cells


def ask_model(cells: list[dict[str, Any]], command: list[str], trace: Path) -> None:
    """Capture it, and add what is predicted to its cells."""
    words = nearfar("capture", "--no-fetch", "--follow-forks", "--force", "-o", trace, "--")
    settings = [f"{name}={value}" for name, value in kernel.ENVIRONMENT.items()]
    run(["env", "-i", *settings, *words, *command], discard=True)
    memory = ",".join(str(cell["frames"] * kernel.PAGE) for cell in cells)
    pages = peak(trace)
    predicted = {policy: predict(trace, policy, memory) for policy in (OURS, *OTHERS)}
    for cell in cells:
        cell["trace_pages"] = pages
        cell["predicted"] = {name: found[cell["frames"]] for name, found in predicted.items()}


def ended_well(ran: kernel.Finished) -> bool:
    """Whether nothing of it was killed for lack of memory, and it did its work."""
    return ran.exit_code == 0 and ran.killed == 0


def signed_error(cell: dict[str, Any], policy: str = OURS, how: str = "kernel") -> float | None:
    """Percent that the prediction is above the kernel's median; None where there is nothing to judge."""
    if not cell[how]:
        return None
    count = statistics.median(cell[how])
    if count < FEWEST:
        return None
    return 100 * (cell["predicted"][policy] - count) / count


def errors(cells: Iterable[dict[str, Any]], *which: str) -> list[float]:
    """Signed errors of the cells that have one."""
    return [error for cell in cells if (error := signed_error(cell, *which)) is not None]


def share(found: list[float], total: int, near: int) -> float:
    """Percent of ``total`` cells that err by ``near`` percent at most."""
    return 100 * sum(abs(error) <= near for error in found) / total


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """The figures of each program, then those of all cells."""
    made = []
    for name in dict.fromkeys(cell["program"] for cell in cells):
        found = errors(cell for cell in cells if cell["program"] == name)
        if found:
            made.append(row(NAME, f"signed error, {name}", found, "%"))
    for policy, how in ((OURS, "kernel"), (OURS, "polled"), *((other, "kernel") for other in OTHERS)):
        found = errors(cells, policy, how)
        if not found:
            continue
        ours = (policy, how) == (OURS, "kernel")
        label = f"`{policy}`, kernel {'polled' if how == 'polled' else 'not polled'}"
        made.append(row(NAME, f"signed error, all, {label}", found, "%"))
        distance = [abs(statistics.median(found))]
        made.append(
            row(NAME, f"distance of that median from 0, {label}", distance, "%",
                goal="<= 10" if ours else "")
        )  # fmt: skip
        for near in NEAR:
            goal = ">= 90" if ours and near == NEAR[-1] else ""
            within = [share(found, len(cells), near)]
            made.append(row(NAME, f"cells within {near} %, {label}", within, "%", goal=goal))
    killed = [sum(cell[f"{how}_killed"] for cell in cells) for how in ("kernel", "polled")]
    made.append(row(NAME, "runs killed for lack of memory, not polled", killed[:1], "runs"))
    made.append(row(NAME, "runs killed for lack of memory, polled", killed[1:], "runs"))
    return made


#: Files are in the page cache, charged to the group that read them first.
STUDY = ("--lifetimes", "on", "--page-cache", "elsewhere", "--page-sizes", "4K", "--format", "json")


def predict(trace: Path, policy: str, memory: str) -> dict[int, int]:
    """Pages read back from swap at each number of frames."""
    words = [*STUDY, "--replacement", policy, "--memory", memory]
    if policy == OURS:
        words += ["--swappiness", kernel.SWAPPINESS]
    words += ["--machine", "desktop-nvm", "--storage", "nvm-1x"]
    result = run(nearfar("paging", trace, *words)).json()
    return {each["frames"]: each["swap_ins"] for each in result["rows"]}


def peak(trace: Path) -> int:
    """The most anonymous pages at once."""
    result = run(nearfar("paging", trace, *STUDY, "--memory", "100%")).json()
    return int(result["run"]["peak_resident_bytes"]) // kernel.PAGE
