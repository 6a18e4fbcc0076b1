"""Memory of a study of 10^8 pages, which must fit in 16 GiB. Slow: runs only with `--huge`."""

from __future__ import annotations

import os

from inputs import Inputs
from measure import Row, row

NAME = "huge"
SUMMARY = "the default study of 10^8 pages: memory and time (only with --huge)"

#: Default of `--huge`, and the least number of pages for which the goal is judged.
PAGES = 10**8


def run_case(inputs: Inputs, pages: int) -> list[Row]:
    """Study a trace that references ``pages`` pages in order, then a fifth of them again."""
    refs = pages + pages // 5
    to = inputs.generate("strided", inputs.scratch / "huge.trace", refs, pages)
    found = inputs.measure("study", to)
    cores = len(os.sched_getaffinity(0))
    note = f"{refs:,} references to {pages:,} pages of 4 KiB"
    peak = found["peak_bytes"] / 2**30
    goal = "<= 16" if pages >= PAGES else ""
    return [
        row(NAME, "peak memory, study", [peak], "GiB", goal=goal, cores=cores, note=note),
        row(NAME, "peak memory a page", [found["peak_bytes"] / pages], "bytes"),
        row(NAME, "study", found["study"]["seconds"], "s", cores=cores),
    ]
