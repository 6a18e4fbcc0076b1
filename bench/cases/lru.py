"""Speed of exact LRU curves, for all memory sizes at once, against a plain Fenwick tree."""

from __future__ import annotations

from inputs import Inputs
from measure import Row, ratios, row

NAME = "lru"
SUMMARY = "exact LRU curves, all sizes at once, against a plain Fenwick tree"


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time both on one core; `nearfar-bench` fails if any of their stack distances differ."""
    rows = []
    for name, trace in (("capture", inputs.captured), ("zipf", inputs.zipf)):
        for page_bytes in (4096, 512):
            more = ["--page-bytes", str(page_bytes), "--rounds", str(rounds)]
            found = inputs.measure("lru", trace, *more, cores=1)
            ours, plain = found["stack"], found["fenwick"]
            about = f"{name}, {page_bytes} B"
            note = f"{found['references']:,} references, {found['pages']:,} pages; all equal"
            rows += [
                row(
                    NAME, f"Fenwick / engine, {about}",
                    ratios(plain["seconds"], ours["seconds"]), "x",
                    goal=">= 3", cores=1, note=note,
                ),
                row(
                    NAME, f"engine rate, {about}",
                    [found["references"] / s / 1e6 for s in ours["seconds"]],
                    "M references/s", cores=1,
                ),
                row(
                    NAME, f"peak memory, {about}", [ours["peak_bytes"] / 2**20], "MiB", cores=1,
                    note=f"of it {found['ids_bytes'] / 2**20:.0f} MiB page numbers; "
                    f"Fenwick {plain['peak_bytes'] / 2**20:.0f} MiB",
                ),
            ]  # fmt: skip
    return rows
