"""A sample of the pages against all of them."""

from __future__ import annotations

import statistics

from inputs import Inputs
from measure import BenchError, Row, ratios, row

NAME = "sample"
SUMMARY = "`--sample` on the Zipf trace: error against exact, and speed-up"


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """One core, alternating; errors over the configurations that were sampled at all."""
    rate = 0.5 if quick else 0.01
    exact_seconds, seconds = [], []
    exact, sampled = {}, {}
    for _ in range(rounds):
        exact = inputs.measure("study", inputs.zipf, "--threads", "1", cores=1)
        more = ["--threads", "1", "--sample", str(rate)]
        sampled = inputs.measure("study", inputs.zipf, *more, cores=1)
        exact_seconds.append(exact["study"]["seconds"][0])
        seconds.append(sampled["study"]["seconds"][0])
    pairs = [
        (a, b)
        for a, b in zip(exact["cells"], sampled["cells"], strict=True)
        if b["faults_error"] is not None
    ]
    if not pairs:
        raise BenchError("sample: too few pages to sample at this rate; ask for more --refs")
    errors = [abs(a["faults"] - b["faults"]) / a["references"] for a, b in pairs]
    within = [abs(a["faults"] - b["faults"]) <= 2 * b["faults_error"] for a, b in pairs]
    sizes = sorted({b["page_bytes"] for _, b in pairs})
    note = (
        f"rate {rate}; {len(pairs)} of {len(exact['cells'])} configurations, pages of {sizes[0]} "
        f"to {sizes[-1]} B; the others have too few pages and are simulated whole"
    )
    shares = [sum(within) / len(within)]
    return [
        row(
            NAME, "exact / sampled, time", ratios(exact_seconds, seconds), "x", cores=1, note=note
        ),
        row(
            NAME, "error of the fault rate, mean", [statistics.mean(errors)], "faults/reference"
        ),
        row(NAME, "error of the fault rate, largest", [max(errors)], "faults/reference"),
        row(NAME, "within two stated standard errors", shares, "of configurations"),
        row(
            NAME, "peak memory, sampled", [sampled["study"]["peak_bytes"] / 2**20], "MiB", cores=1
        ),
    ]  # fmt: skip
