"""Scaling of a sweep from one to two worker processes."""

from __future__ import annotations

import shutil

from inputs import Inputs
from measure import Row, nearfar, row, run

NAME = "sweep"
SUMMARY = "`nearfar sweep` with two workers against one: scaling efficiency"
CELLS = 8


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time whole processes in turn; the engine has one thread in each cell."""
    file = inputs.scratch / "sweep.toml"
    text = f'study = "paging"\n[grid]\ntlb = {[str(16 * (i + 1)) for i in range(CELLS)]}\n'
    options = f'trace = "{inputs.zipf}"\npage_sizes = "4K,64K"\nmemory = "50%"\n'
    file.write_text(text.replace("'", '"') + "[options]\n" + options)
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, found in seconds.items():
            out = inputs.scratch / "sweep"
            # The threads are shared out among the workers.
            more = ["--workers", str(workers), "--threads", str(workers), "-o", str(out)]
            found.append(run(nearfar("sweep", file, *more), discard=True).seconds)
            shutil.rmtree(out)
    efficiency = [one / (2 * two) for one, two in zip(seconds[1], seconds[2], strict=True)]
    note = f"{CELLS} cells of one thread each; start of the processes and all writing included"
    return [
        row(NAME, "one worker", seconds[1], "s", cores=1, note=note),
        row(NAME, "two workers", seconds[2], "s", cores=2),
        row(NAME, "efficiency, two workers", efficiency, "of 1", cores=2,
            note="time of one / (2 x time of two)"),
    ]  # fmt: skip
