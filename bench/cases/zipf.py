"""Speed of the default paging study of a trace of independent references, against libCacheSim."""

from __future__ import annotations

from against import compare
from inputs import Inputs
from measure import Row, row

NAME = "zipf"
SUMMARY = "the default study of Zipf(1.0), a trace of independent references"


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time the study and a few configurations of libCacheSim on one core."""
    page_sizes = [4096] if quick else [512, 4096, 65536, 2**21]
    fractions = [0.2, 0.8]  # of the touched pages
    done = compare(inputs, inputs.zipf, page_sizes, fractions, rounds)
    records = done.study["records"]
    ratio = [
        done.configurations * a / b
        for a, b in zip(done.run_seconds, done.study_seconds, strict=True)
    ]
    note = f"{records:,} references to {inputs.zipf_pages:,} pages"
    rates = [records / s / 1e6 for s in done.study_seconds]
    each = [rate * done.configurations for rate in rates]
    peak = done.study["study"]["peak_bytes"] / 2**20
    return [
        row(NAME, "libCacheSim / study, all configurations", ratio, "x", cores=1, note=done.how),
        row(NAME, "miss counts compared, all equal", [done.checked], "counts"),
        row(NAME, "study rate", rates, "M references/s", cores=1, note=note),
        row(NAME, "study rate", each, "M configuration-references/s", cores=1),
        row(NAME, "peak memory, study", [peak], "MiB", cores=1),
    ]
