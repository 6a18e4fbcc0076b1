"""How many confidence intervals of `capture --sample` contain the value of the whole capture."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import Row, capture, row
from programs import PROGRAMS
from table import recorded

from nearfar.errors import NearfarError
from nearfar.paging import paging
from nearfar.paging_answers import gain_interval
from nearfar.size import size

NAME = "captured-sample"
SUMMARY = "`capture --sample`: share of intervals that hold the answer of a whole capture"

#: Samples of each program, the sampled share of its pages, and the scale of its input.
SEEDS, SHARE, PART = 10, 0.5, 0.3
#: Number of samples for which the slow `nearfar size` runs.
SIZED = 3
MEMORY = "25%,50%,75%"
POLICIES = ("linux", "clock")
MACHINE = "nvme"
#: Estimates that are compared, by the key ``of`` of a cell.
WHAT = {
    "linux": "fault rate (linux)",
    "clock": "fault rate (clock)",
    "tlb": "TLB miss rate",
    "gain": "gain of larger pages",
}
#: Programs left out: the references of a server and its client differ from run to run.
LEFT_OUT = ("redis",)
#: Programs and samples of a quick run.
QUICK, QUICK_SEEDS = ("graph",), 2

#: Page sizes that are compared, in memory that holds all pages.
PAGES = {4096: "4K", 64 << 10: "64K", 2 << 20: "2M"}
ENOUGH = "1T"

#: An estimate and the ends of its interval, by key of :data:`WHAT` and memory or page size.
Estimates = dict[tuple[str, str], tuple[float, float | None, float | None]]


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Capture each program once whole, then a sample for each seed."""
    if not inputs.can_capture:
        inputs.remarks.append(f"{NAME} skipped: no QEMU")
        return []
    seeds = QUICK_SEEDS if quick else SEEDS
    for program in PROGRAMS:
        if program.name in LEFT_OUT or quick and program.name not in QUICK:
            continue
        if program.missing():
            inputs.remarks.append(f"{NAME}: {program.name}: {program.missing()[0]} is not there")
            continue
        folder = inputs.scratch / f"{NAME}-{program.name}"
        folder.mkdir()
        command = program.make(folder, PART)
        trace = capture_program(folder, command, None)
        truth, whole = estimates(trace), advised(trace)
        for seed in range(seeds):
            name: dict[str, object] = {"program": program.name, "seed": seed}
            try:
                found = estimates(capture_program(folder, command, seed))
            except NearfarError as error:
                inputs.remarks.append(f"{NAME}: {program.name}, seed {seed}: {error}")
                continue
            if seed < SIZED:
                ratio = advised(folder / "t.trace") / whole
                inputs.cells.append({**name, "of": "size", "ratio": ratio})
            inputs.cells += [{**name, **cell} for cell in compared(truth, found)]
        shutil.rmtree(folder)
    return rows_of(inputs.cells)


def compared(truth: Estimates, found: Estimates) -> list[dict[str, object]]:
    """A cell for each interval of a sample, with the true value of the whole capture."""
    return [
        {"of": of, "at": at, "true": truth[of, at][0], "found": value, "low": low, "high": high}
        for (of, at), (value, low, high) in found.items()
        # Skip TLB miss rates of samples with too few bursts (their interval is 0 to 1), and gains
        # that depend on them.
        if low is not None and high is not None and found.get(("tlb", at), (0, 0, 0))[2] != 1
    ]


def rows_of(cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The share of intervals that contain the true value, and ratios of advised memory."""
    programs = list(dict.fromkeys(cell["program"] for cell in cells))
    seeds = len({cell["seed"] for cell in cells})
    note = f"{', '.join(programs)}; {seeds} samples of {SHARE:.0%} of the pages each"
    made = []
    for key, what in WHAT.items():
        own = [cell for cell in cells if cell["of"] == key]
        if own:
            held = sum(cell["low"] <= cell["true"] <= cell["high"] for cell in own)
            made.append(
                row(NAME, f"{what} inside its 95 % interval", [held / len(own)], "of cells",
                    goal=">= 0.95", note=f"{len(own)} cells; {note}")
            )  # fmt: skip
    sizes = [cell["ratio"] for cell in cells if cell["of"] == "size"]
    if sizes:
        enough = sum(size >= 1 for size in sizes) / len(sizes)
        made += [
            row(NAME, "`size`: memory advised / advised by the whole capture", sizes, "x",
                note=f"{len(sizes)} samples"),
            row(NAME, "`size`: at least the memory of the whole capture", [enough], "of samples",
                goal=">= 0.95"),
        ]  # fmt: skip
    return made


def programs() -> str:
    """By program: the intervals that contain the true value, and ratios of advised memory."""
    cells = recorded(NAME)["cells"]
    lines = [f"| program | {' | '.join(WHAT.values())} | `size` |", "|---|" + "---:|" * 5]
    for name in dict.fromkeys(cell["program"] for cell in cells):
        own = [cell for cell in cells if cell["program"] == name]
        words = [name]
        for of in WHAT:
            held = [cell["low"] <= cell["true"] <= cell["high"] for cell in own if cell["of"] == of]
            words.append(f"{sum(held)} of {len(held)}")
        sizes = [cell["ratio"] for cell in own if cell["of"] == "size"]
        words.append(f"{min(sizes):.2f} to {max(sizes):.2f}")
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


#: Tables of docs/validation.md, by name.
TABLES = {"programs": programs}


def capture_program(folder: Path, command: list[str], seed: int | None) -> Path:
    """Capture a program: whole if ``seed`` is None, else the sample of that seed."""
    path = folder / "t.trace"
    sample = [] if seed is None else ["--sample", str(SHARE), "--sample-seed", str(seed)]
    capture(command, path, kernel.ENVIRONMENT, *sample)
    return path


def advised(trace: Path) -> int:
    """Bytes of memory that ``nearfar size`` advises, without the bloat of large pages."""
    (sized,) = size(trace, machine=MACHINE, swap="zram").rows
    return sized["memory_bytes"] - sized["bloat_bytes"]


def estimates(trace: Path) -> Estimates:
    """Estimates of `nearfar paging`: fault rates, TLB miss rates, gains of larger pages."""
    found: Estimates = {}
    for policy in POLICIES:
        study = paging(trace, page_sizes="4K", view="paper", memory=MEMORY, replacement=policy)
        for cell in study.rows:
            found[policy, f"{cell['memory_fraction']:.0%}"] = (
                cell["fault_rate"], cell["fault_rate_low"], cell["fault_rate_high"]
            )  # fmt: skip
    study = paging(trace, page_sizes=",".join(PAGES.values()), view="paper", memory=ENOUGH,
                   machine=MACHINE)  # fmt: skip
    usual, *larger = study.rows
    for cell in study.rows:
        found["tlb", PAGES[cell["page_bytes"]]] = (
            cell["tlb_miss_rate"], cell["tlb_miss_rate_low"], cell["tlb_miss_rate_high"]
        )  # fmt: skip
    for cell in larger:
        low, gain, high = gain_interval(usual, cell)
        found["gain", PAGES[cell["page_bytes"]]] = (gain, low, high)
    return found
