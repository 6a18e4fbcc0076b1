"""A part of the trace against all of it: time, and whether the stated intervals hold."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inputs import Inputs
from measure import BenchError, Row, ratios, row

NAME = "sample"
SUMMARY = "`--sample`: speed-up against exact, share of the limit, and intervals that hold"

#: Samples of each trace of which it is counted how many cells hold the true value.
SEEDS = 20
#: Least speed-up on generated traces and on a capture.
GOALS = {"generated": ">= 20", "captured": ">= 5"}

Cells = Mapping[tuple[int, float], Mapping[str, Any]]


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """One core, in turn: decoding, exact, sampled."""
    rate = 0.5 if quick else 0.01
    traces = {"Zipf(1.0)": ("generated", inputs.zipf), "uniform": ("generated", inputs.uniform)}
    if inputs.graph is not None:
        traces["graph"] = ("captured", inputs.graph)
    rows: list[Row] = []
    faults, walks = [0, 0], [0, 0]
    for name, (kind, trace) in traces.items():
        exact_seconds, seconds, decode = [], [], []
        for _ in range(rounds):
            exact = inputs.measure("study", trace, "--threads", "1", "--decode", "1", cores=1)
            decode.append(exact["paging"]["seconds"][0])
            exact_seconds.append(exact["study"]["seconds"][0])
            seconds.append(_sampled(inputs, trace, rate, 0)["study"]["seconds"][0])
        truth = _cells(exact)
        for seed in range(1, SEEDS + 1):
            for key, cell in _cells(_sampled(inputs, trace, rate, seed)).items():
                _count(faults, cell["faults_interval"], truth[key]["faults"])
                if key[1] == min(fraction for _, fraction in truth):
                    _count(walks, cell["tlb_interval"], truth[key]["tlb_misses"])
        sizes = sorted({page for page, _ in _cells(_sampled(inputs, trace, rate, 0))})
        note = f"rate {rate}, {exact['records']:,} references; pages of {sizes[0]} to {sizes[-1]} B"
        rows += [
            row(NAME, f"exact / sampled, {name}", ratios(exact_seconds, seconds), "x",
                goal=GOALS[kind], cores=1, note=note),
            row(NAME, f"decoding / sampled, {name}", ratios(decode, seconds), "of the limit",
                cores=1, note="what is read must be decoded"),
        ]  # fmt: skip
    if not faults[1] or not walks[1]:
        raise BenchError("sample: no interval at this rate; ask for more --refs")
    for what, (held, of) in (("fault rate", faults), ("TLB miss rate", walks)):
        note = f"{of:,} cells of {SEEDS} samples of each trace"
        rows.append(
            row(NAME, f"true {what} inside its 95 % interval", [held / of], "of cells",
                goal=">= 0.94", note=note)
        )  # fmt: skip
    return rows


def _sampled(inputs: Inputs, trace: Path, rate: float, seed: int) -> dict[str, Any]:
    more = ["--threads", "1", "--sample", str(rate), "--sample-seed", str(seed)]
    return inputs.measure("study", trace, *more, cores=1)


def _cells(found: Mapping[str, Any]) -> Cells:
    return {(cell["page_bytes"], cell["memory_fraction"]): cell for cell in found["cells"]}


def _count(sums: list[int], interval: list[float] | None, true: int) -> None:
    """Count an interval, and whether it holds ``true``; there is none where all was simulated."""
    if interval is not None:
        sums[0] += interval[0] <= true <= interval[1]
        sums[1] += 1
