"""Cost of `--view machine`, and its error against a simulation with page tables in the caches."""

from __future__ import annotations

from inputs import Inputs
from measure import Row, ratios, row

NAME = "view"
SUMMARY = "`--view machine`: its cost beside the study, and its error beside coupled caches"

MACHINE = "zen4-vm"
SIZES = "4096,65536,2097152"
TERMS = ("cpu_ns", "tlb_ns", "walk_ns", "cache_ns", "dram_ns", "fault_ns")


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Measure the cost at all page sizes of the view, and the error at three."""
    programs = {"gzip": inputs.captured, "Zipf(1.0)": inputs.zipf}
    if inputs.can_capture:
        programs["pigz"] = inputs.pigz
    rows = []
    for name, trace in programs.items():
        more = ["--machine", MACHINE, "--rounds", str(rounds)]
        cost = inputs.measure("view", trace, *more, cores=1)
        both = [
            a + b for a, b in zip(cost["study"]["seconds"], cost["view"]["seconds"], strict=True)
        ]
        cost_ratio = ratios(both, cost["study"]["seconds"])
        label = f"study with the view / without, {name}"
        rows.append(row(NAME, label, cost_ratio, "x", goal="<= 2.5", cores=1))
        more = ["--machine", MACHINE, "--page-sizes", SIZES, "--reference", "1"]
        found = inputs.measure("view", trace, *more, cores=1)["cells"]
        note = f"at pages of {SIZES} B; coupled: lines of page tables go through the caches"
        errors = [100 * (_total(cell["fast"]) / _total(cell["reference"]) - 1) for cell in found]
        rows.append(row(NAME, f"signed error of the time, {name}", errors, "%", note=note))
        walks = [
            100 * (cell["fast"]["walk_ns"] / cell["reference"]["walk_ns"] - 1) for cell in found
        ]
        rows.append(row(NAME, f"signed error of the time of walks, {name}", walks, "%"))
        equal = sum(cell["fast"]["walks"] == cell["reference"]["walks"] for cell in found)
        rows.append(
            row(NAME, f"counts of walks that are equal, {name}", [equal], f"of {len(found)}")
        )
    return rows


def _total(time: dict[str, float]) -> float:
    return sum(time[term] for term in TERMS)
