"""Speed of the default paging study, on a captured trace, against libCacheSim and decoding."""

from __future__ import annotations

import os

from against import compare
from inputs import Inputs
from measure import Row, ratios, row

NAME = "paging"
SUMMARY = "the default study of a captured trace against libCacheSim's Clock and against decoding"


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time the study on one core, against libCacheSim; then on all, against a decoding thread."""
    trace = inputs.captured
    page_sizes = [512, 65536] if quick else [512, 4096, 65536, 2**21]
    fractions = [0.2, 0.8]  # of the touched pages
    done = compare(inputs, trace, page_sizes, fractions, rounds)
    records = done.study["records"]

    def speedups(count: int) -> list[float]:
        """Time of ``count`` runs of libCacheSim / time of the study, each round."""
        return [count * a / b for a, b in zip(done.run_seconds, done.study_seconds, strict=True)]

    rows = [
        row(
            NAME, "libCacheSim / study, all configurations", speedups(done.configurations), "x",
            goal=">= 100", cores=1, note=done.how,
        ),
        row(
            NAME, "libCacheSim / study, different ones only", speedups(done.distinct), "x", cores=1,
            note=f"times {done.distinct}: equal page size and frames count once",
        ),
        row(NAME, "miss counts compared, all equal", [done.checked], "counts"),
        row(NAME, "study", done.study_seconds, "s", cores=1, note=f"{records:,} records"),
        row(NAME, "libCacheSim, one configuration", done.run_seconds, "s", cores=1),
        row(
            NAME, "peak memory, study", [done.study["study"]["peak_bytes"] / 2**20], "MiB", cores=1
        ),
        row(
            NAME, "peak memory, libCacheSim", [done.peer_peak_bytes / 2**20], "MiB", cores=1,
            note="its mapped input included",
        ),
    ]  # fmt: skip
    cores = len(os.sched_getaffinity(0))
    # Threads on all cores; decoding alone is timed, too.
    more = ["--threads", "0", "--decode", "1", "--rounds", str(rounds)]
    found = inputs.measure("study", trace, *more)
    seconds = found["study"]["seconds"]
    for name, key, goal in (("all columns", "all", "<= 3"), ("its own columns", "paging", "")):
        ratio = ratios(seconds, found[key]["seconds"])
        rows.append(row(NAME, f"study / decoding {name}", ratio, "x", goal=goal, cores=cores))
    rate = [records / s / 1e6 for s in seconds]
    rows.append(row(NAME, "study rate", rate, "M references/s", cores=cores))
    peak = found["study"]["peak_bytes"] / 2**20
    rows.append(row(NAME, "peak memory, study", [peak], "MiB", cores=cores))
    return rows
