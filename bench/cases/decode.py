"""Speed of decoding the capture alone."""

from __future__ import annotations

from inputs import Inputs
from measure import Row, row

NAME = "decode"
SUMMARY = "decoding the capture on one core: all columns, and the three that the study reads"


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Decode both sets of columns in turn, in one process."""
    found = inputs.measure("decode", inputs.captured, "--rounds", str(rounds), cores=1)
    rows = []
    for name, key, goal in (
        ("all columns", "all", ""),
        ("the study's columns", "paging", ">= 200"),
    ):
        rates = [found["records"] / s / 1e6 for s in found[key]["seconds"]]
        rows.append(row(NAME, f"decode, {name}", rates, "M records/s", goal=goal, cores=1))
    peak = found["peak_bytes"] / 2**20
    return [*rows, row(NAME, "peak memory, decode", [peak], "MiB", cores=1)]
