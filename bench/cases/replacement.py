"""Speed of the default paging study under Linux's replacement policies, against CLOCK."""

from __future__ import annotations

from inputs import Inputs
from measure import Row, ratios, row

NAME = "replacement"
SUMMARY = "the default study under Linux's policies against the same under CLOCK"


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time whole studies on one core, with decoding and the TLB."""
    rows = []
    for name, trace in (("capture", inputs.captured), ("zipf", inputs.zipf)):
        seconds: dict[str, list[float]] = {"clock": [], "linux": [], "mglru": []}
        faults = dict.fromkeys(seconds, 0)
        for _ in range(rounds):
            for policy, found in seconds.items():
                more = ["--replacement", policy, "--threads", "1"]
                done = inputs.measure("study", trace, *more, cores=1)
                found += done["study"]["seconds"]
                faults[policy] = sum(cell["faults"] for cell in done["cells"])
        for policy in ("linux", "mglru"):
            rows.append(
                row(
                    NAME, f"{policy} / clock, {name}", ratios(seconds[policy], seconds["clock"]),
                    "x", goal="<= 2", cores=1,
                    note=f"{faults[policy]:,} faults, {faults['clock']:,} of CLOCK",
                )
            )  # fmt: skip
    return rows
