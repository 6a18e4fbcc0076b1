"""Samples recorded by `capture --sample` against whole captures: do the stated intervals hold?"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from inputs import Inputs
from measure import Row, nearfar, row, run
from programs import PROGRAMS

from nearfar.errors import NearfarError
from nearfar.paging import paging
from nearfar.size import size

NAME = "captured-sample"
SUMMARY = "`capture --sample`: share of intervals that hold the answer of a whole capture"

#: Samples of each program, the share of its pages, and how much of its full size it has.
SEEDS, SHARE, PART = 10, 0.5, 0.3
MEMORY = "25%,50%,75%"
POLICIES = ("linux", "clock")
#: Two processes that wait for each other do not make the same references twice.
LEFT_OUT = ("redis",)
#: Programs and samples of a quick run.
QUICK, QUICK_SEEDS = ("graph",), 2

#: By policy, or `tlb`, and part of memory: the rate and its interval.
Rates = dict[tuple[str, float], tuple[float, float | None, float | None]]


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Each program once whole, then with each seed."""
    if not inputs.can_capture:
        return []
    # Python's sets and dictionaries are in the same order each time.
    os.environ["PYTHONHASHSEED"] = "0"
    seeds = QUICK_SEEDS if quick else SEEDS
    held, of, used = Counter[str](), Counter[str](), []
    sizes: list[float] = []
    for program in PROGRAMS:
        if program.name in LEFT_OUT or quick and program.name not in QUICK:
            continue
        if program.missing():
            inputs.remarks.append(f"{NAME}: {program.name}: {program.missing()[0]} is not there")
            continue
        folder = inputs.scratch / f"{NAME}-{program.name}"
        folder.mkdir()
        command = program.make(folder, PART)
        trace = record(folder, command, None)
        truth, whole = rates(trace), advised(trace)
        for seed in range(seeds):
            try:
                found = rates(record(folder, command, seed))
            except NearfarError as error:
                inputs.remarks.append(f"{NAME}: {program.name}, seed {seed}: {error}")
                break
            sizes.append(advised(folder / "t.trace") / whole)
            inputs.cells.append(
                {"program": program.name, "seed": seed, "of": "size", "ratio": sizes[-1]}
            )
            for key, (rate, low, high) in found.items():
                # From 0 to 1 where there are too few bursts to say more.
                if low is None or high is None or high == 1:
                    continue
                true = truth[key][0]
                holds = low <= true <= high
                held[key[0]] += holds
                of[key[0]] += 1
                inputs.cells.append(
                    {
                        "program": program.name, "seed": seed, "of": key[0], "memory": key[1],
                        "true": true, "rate": rate, "low": low, "high": high,
                    }
                )  # fmt: skip
        used.append(program.name)
        shutil.rmtree(folder)
    note = f"{', '.join(used)}; {seeds} samples of {SHARE:.0%} of the pages each"
    made = [
        row(NAME, f"true {what} inside its 95 % interval", [held[key] / of[key]], "of cells",
            goal=">= 0.95", note=f"{of[key]} cells; {note}")
        for key, what in (
            *((policy, f"fault rate, {policy},") for policy in POLICIES),
            ("tlb", "TLB miss rate"),
        )
        if of[key]
    ]  # fmt: skip
    if sizes:
        enough = sum(size >= 1 for size in sizes) / len(sizes)
        made += [
            row(NAME, "`size`: memory advised / advised by the whole capture", sizes, "x",
                note=f"{len(sizes)} samples; {note}"),
            row(NAME, "`size`: at least the memory of the whole capture", [enough], "of samples",
                goal=">= 0.95"),
        ]  # fmt: skip
    return made


def record(folder: Path, command: list[str], seed: int | None) -> Path:
    """Capture a program: whole, or the sample of a seed."""
    path = folder / "t.trace"
    sample = [] if seed is None else ["--sample", str(SHARE), "--sample-seed", str(seed)]
    words = nearfar("capture", "--force", "--follow-forks", *sample, "-o", path, "--", *command)
    run(words, discard=True)
    return path


def advised(trace: Path) -> int:
    """The memory that ``nearfar size`` advises, without what large pages add."""
    (sized,) = size(trace, machine="nvme", swap="zram").rows
    return sized["memory_bytes"] - sized["bloat_bytes"]


def rates(trace: Path) -> Rates:
    """The rates of a trace."""
    return dict(_rates(trace))


def _rates(trace: Path) -> Iterator[
    tuple[tuple[str, float], tuple[float, float | None, float | None]]
]:  # fmt: skip
    for policy in POLICIES:
        found = paging(trace, page_sizes="4K", view="paper", memory=MEMORY, replacement=policy)
        for cell in found.rows:
            part = cell["memory_fraction"]
            assert part is not None
            yield (
                (policy, part),
                (cell["fault_rate"], cell["fault_rate_low"], cell["fault_rate_high"]),
            )
    cell = found.rows[0]
    yield (
        ("tlb", 1.0),
        (cell["tlb_miss_rate"], cell["tlb_miss_rate_low"], cell["tlb_miss_rate_high"]),
    )
