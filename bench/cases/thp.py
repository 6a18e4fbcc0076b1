"""Transparent huge pages on this machine's kernel, compared with ``nearfar thp``."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, alone, capture, interval, nearfar, percent, row, run
from programs import HERE, MANAGED, PROGRAMS, Program
from table import figures, recorded
from undo import undoing

from cases.page_gain import kept_memory, ready
from nearfar.apply.measure import huge_pages, kib
from nearfar.apply.measure import run as run_command
from nearfar.apply.setting import SYSFS, switches
from nearfar.gain_error import gain_error
from nearfar.processes import process_tree
from nearfar.thp import settings

NAME = "thp"
SUMMARY = "memory, merges and gains under settings of huge pages, against the prediction"

#: Scale of each program's input, for runs of some tenths of a second.
PART = 1.0
#: Policies of `nearfar thp`.
POLICIES = ("never", "always", "defer", "madvise", "64K=always")
#: khugepaged's sleep between scans, and pages of a scan, for merges within short runs.
SLEEP_MS, PAGES = 20, 4096
#: Repetitions for each round, and the number of points at which memory is compared.
TURNS, TENTHS = 2, 10
#: Counters of ``/proc/vmstat``, by the column of `nearfar thp`.
COUNTERS = {
    "huge_faults": "thp_fault_alloc",
    "fallbacks": "thp_fault_fallback",
    "merges": "thp_collapse_alloc",
    "splits": "thp_split_pmd",
}


def _huge(what: str, rounds: int) -> Program:
    def make(folder: Path, part: float) -> list[str]:
        program = folder / "huge"
        run(["gcc", "-O2", "-o", program, HERE / "huge.c"])
        return [str(program), what, str(max(1, round(rounds * part / PART)))]

    return Program(what, "made for this", ("gcc",), make)


CASES = (
    *PROGRAMS,
    *MANAGED,
    _huge("sparse", 30),
    _huge("again", 6),
    _huge("grow", 4),
    _huge("fork", 6),
)
QUICK = ("sparse",)


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Measure the machine, then measure and predict each program under each policy."""
    found = ready(inputs, NAME, quick)
    if found is None:
        return []
    _, machine_file = found
    cells: list[dict[str, Any]] = []
    for program in CASES:
        missing = program.missing()
        if missing:
            inputs.remarks.append(f"{NAME}: {program.name} skipped: no {missing[0]}")
        elif not quick or program.name in QUICK:
            folder = inputs.scratch / f"thp-{program.name}"
            folder.mkdir()
            part = 0.3 if quick else PART
            command = program.make(folder, part)
            print(f"bench: {NAME}: {program.name}", file=sys.stderr)
            capture(command, folder / "trace", kernel.ENVIRONMENT)
            predicted = predict(folder / "trace", machine_file)
            # Keep free memory: getting it back from the host would disturb the times. No huge pages
            # for this process: khugepaged would scan its large address space too.
            with kept_memory(), huge_pages(disable=True):
                made = measured(command, 1 if quick else TURNS * rounds)
            for policy, cell in made.items():
                cells.append(
                    {"program": program.name, "policy": policy, **cell, **predicted[policy]}
                )
            shutil.rmtree(folder)
    inputs.cells += cells
    return rows(cells)


def predict(
    trace: Path,
    machine: str | Path,
    policies: Sequence[str] = POLICIES,
    sleep_ms: float = SLEEP_MS,
    linux: str = "6.13",
) -> dict[str, dict[str, Any]]:
    """The row of `nearfar thp` and the memory over time that it predicts, by policy.

    ``linux``: the kernel to predict; 6.13 stands for later ones, too.
    """
    options = ("--policy", ",".join(policies), "--machine", machine, "--linux", linux)
    khugepaged = ("--scan-sleep", f"{1e6 * sleep_ms:.0f}ns", "--pages-to-scan", str(PAGES))
    study = run(
        nearfar("thp", trace, *options, *khugepaged, "--points", str(TENTHS), "--format", "json")
    ).json()
    found = {}
    for one in study["rows"]:
        points = [point for point in study["points"] if point["policy"] == one["policy"]]
        found[one["policy"]] = {
            "predicted": {**one, "seconds": one["total_ns"] * one["references"] / 1e9},
            "predicted_course": [[p["mapped_bytes"], p["huge_bytes"]] for p in points],
        }
    return found


def setting_files(policy: str) -> dict[str, str]:
    """The values of files below :data:`SYSFS` that set a policy, once all sizes are ``never``."""
    defaults = {"hugepages-2048kB/enabled": "inherit", "enabled": "never", "defrag": "madvise"}
    return (
        defaults
        | settings(policy)
        | {
            "khugepaged/scan_sleep_millisecs": str(SLEEP_MS),
            "khugepaged/pages_to_scan": str(PAGES),
            "khugepaged/max_ptes_none": "511",
        }
    )


@contextmanager
def applied(policy: str) -> Iterator[None]:
    """Apply a policy's settings to this machine for the block."""
    with undoing("thp") as undo:
        for file, word in (
            dict.fromkeys(switches().values(), "never") | setting_files(policy)
        ).items():
            path = SYSFS / file
            was = path.read_text(encoding="ascii").strip()
            if "[" in was:
                was = was.partition("[")[2].partition("]")[0]
            undo.later("write", path, was)
            path.write_text(word, encoding="ascii")
        yield


def counters() -> dict[str, int]:
    """The values of :data:`COUNTERS`, by column."""
    lines = dict(line.split() for line in Path("/proc/vmstat").read_text("ascii").splitlines())
    return {column: int(lines[name]) for column, name in COUNTERS.items()}


def measured(command: list[str], turns: int) -> dict[str, dict[str, Any]]:
    """By policy: processor time of each turn, and counters and memory of one more run."""
    words = [str(word) for word in alone(kernel.ENVIRONMENT, command)]
    cells: dict[str, dict[str, Any]] = {policy: {"spent": [], "base": []} for policy in POLICIES}
    others = [policy for policy in POLICIES if policy != "never"]
    with applied("never"):
        _spent(words)
    for turn in range(turns):
        for policy in others if turn % 2 else reversed(others):
            for one in (policy, "never"):
                with applied(one):
                    cells[one]["spent"].append(_spent(words))
            cells[policy]["base"].append(cells["never"]["spent"][-1])
    for policy, cell in cells.items():
        with applied(policy):
            before = counters()
            seconds, samples = watched(words)
            after = counters()
        cell["counts"] = {name: after[name] - before[name] for name in COUNTERS}
        cell["course"] = course(seconds, samples)
    return cells


def _spent(words: list[str]) -> float:
    """Processor time of a run and its children."""
    ran = run_command(words, disable=False, sample=False, stdout=subprocess.DEVNULL)
    if ran.exit_code != 0:
        raise BenchError(f"{words[0]}: ended with {ran.exit_code}")
    return ran.user_seconds + ran.system_seconds


#: Seconds since the start, bytes of private memory, and bytes of it in huge pages.
Sample = tuple[float, int, int]


def watched(words: list[str]) -> tuple[float, list[Sample]]:
    """Run a command and sample its private memory and that of its descendants.

    Returns seconds and samples. A page shared after a fork counts in each process, as in the
    prediction.
    """
    samples: list[Sample] = []
    with huge_pages(disable=False):
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    with child:
        began = time.monotonic()
        while child.poll() is None:
            at = time.monotonic()
            tree = process_tree(child.pid)
            private = sum(kib(pid, "status", "RssAnon:") for pid in tree)
            huge = sum(kib(pid, "smaps_rollup", "AnonHugePages:") for pid in tree)
            samples.append((at - began, private * 1024, huge * 1024))
            # Sample for at most a sixth of the time.
            time.sleep(max(0.002, 5 * (time.monotonic() - at)))
        seconds = time.monotonic() - began
    return seconds, samples


def course(seconds: float, samples: list[Sample]) -> list[list[int]]:
    """The private and huge bytes of the sample nearest to the middle of each tenth of the run."""
    points = []
    for tenth in range(TENTHS):
        middle = seconds * (tenth + 0.5) / TENTHS
        _, private, huge = min(samples, key=lambda sample: abs(sample[0] - middle))
        points.append([private, huge])
    return points


def memory_errors(cell: Mapping[str, Any]) -> list[float]:
    """Relative error of the predicted private memory at each tenth."""
    pairs = zip(cell["predicted_course"], cell["course"], strict=True)
    return [ours[0] / max(theirs[0], 1) - 1 for ours, theirs in pairs]


def gains(cell: Mapping[str, Any]) -> list[float]:
    """Share of processor time that each turn saves over the adjacent turn of `never`."""
    return [1 - spent / base for spent, base in zip(cell["spent"], cell["base"], strict=True)]


def near_counts(cell: Mapping[str, Any], name: str) -> bool:
    """Whether a predicted count is within a quarter, or within eight, of the measured one."""
    ours, theirs = cell["predicted"][name], cell["counts"][name]
    return abs(ours - theirs) <= max(8, theirs / 4)


def predicted_gain(cell: Mapping[str, Any], base: Mapping[str, Any]) -> float:
    """Share of processor time that the policy is predicted to save."""
    return 1 - cell["predicted"]["seconds"] / base["predicted"]["seconds"]


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """Shares of cells whose prediction is within tolerance."""
    if not cells:
        return []
    bases = {cell["program"]: cell for cell in cells if cell["policy"] == "never"}
    others = [cell for cell in cells if cell["policy"] != "never"]
    signs, near = [], []
    for cell in others:
        found, predicted = gains(cell), predicted_gain(cell, bases[cell["program"]])
        low, high = interval(found)
        middle = statistics.median(found)
        # A gain is shown if its interval excludes 0.
        if low > 0 or high < 0:
            signs.append(predicted * middle > 0)
        near.append(abs(predicted - middle) <= gain_error(middle))
    made = [
        *memory_rows(NAME, cells),
        row(NAME, "cells with the gain near enough", [_share(near)], "", goal=">= 0.8"),
    ]
    if signs:
        made.append(row(NAME, "shown gains with the right sign", [_share(signs)], "", goal=">= 1"))
    return made + count_rows(NAME, cells)


def memory_rows(case: str, cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Shares of runs, and of tenths of runs, whose predicted memory is within 10 %."""
    tenths = [abs(error) <= 0.1 for cell in cells for error in memory_errors(cell)]
    peaks = [
        abs(_peak(cell, "predicted_course") / _peak(cell, "course") - 1) <= 0.1 for cell in cells
    ]
    return [
        row(case, f"{what} private memory within 10 %", [_share(near)], "", goal=">= 0.9")
        for what, near in (("runs with the peak of", peaks), ("tenths with", tenths))
    ]


def count_rows(case: str, cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """For each counter, the share of cells for which :func:`near_counts` holds."""
    near = {name: [near_counts(cell, name) for cell in cells] for name in COUNTERS}
    return [
        row(case, f"cells with {name} within a quarter", [_share(right)], "", goal=">= 0.9")
        for name, right in near.items()
    ]


def worst_tenth(cell: Mapping[str, Any]) -> float:
    """The largest of :func:`memory_errors`."""
    return max(memory_errors(cell), key=abs)


def _peak(cell: Mapping[str, Any], course: str) -> float:
    return max(max(point[0] for point in cell[course]), 1)


def _share(right: list[bool]) -> float:
    return sum(right) / len(right)


def table() -> str:
    """Every cell as Markdown, largest error of memory first; counts as "measured, predicted"."""
    lines = [
        "| program | policy | memory, worst tenth | gain, measured | predicted | huge faults "
        "| merges | splits |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    cells = recorded(NAME)["cells"]
    bases = {cell["program"]: cell for cell in cells if cell["policy"] == "never"}
    for cell in sorted(cells, key=lambda cell: -abs(worst_tenth(cell))):
        worst = f"{100 * worst_tenth(cell):+.0f} %"
        words = [f"`{cell['program']}`", f"`{cell['policy']}`", worst]
        if cell["base"]:
            words.append(percent(gains(cell)))
            words.append(f"{100 * predicted_gain(cell, bases[cell['program']]):+.1f}")
        else:
            words += ["", ""]
        for name in ("huge_faults", "merges", "splits"):
            words.append(f"{cell['counts'][name]:,}, {cell['predicted'][name]:,}")
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


#: Tables of docs/validation.md, by name.
TABLES = {"figures": figures(NAME), "cells": table}
