"""Speed of the tiering study at full size: accesses per second by part, and memory per page."""

from __future__ import annotations

from pathlib import Path

from inputs import Inputs
from measure import Row, row

NAME = "tiering"
SUMMARY = "the tiering study: NOMAD's medium micro-benchmark, five rounds, and its break-down"
POLICIES = ("none", "nomad", "ssp", "tpp")
#: Goals: the engine's rate as a share of the limit, which is the rate of random reads.
SHARES = {"none": ">= 0.5", "nomad": ">= 0.25"}
#: The bottleneck of each policy.
LIMITED = {
    "none": "instructions: a TLB looked up and filled, and the branch on a hit is unpredictable",
    "nomad": "what a promotion takes: a row below",
    "ssp": "what a promotion takes, as nomad",
    "tpp": "hint faults: a page takes them until its activation has passed the pagevec",
}


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time one thread, in processor time; the generation of accesses is also timed alone."""
    scale = 1 / 64 if quick else 1.0
    more = ["--scale", str(scale), "--rounds", str(rounds), "--policy", ",".join(POLICIES)]
    found = inputs.measure("tiering", Path("nomad-medium"), *more, cores=1)
    accesses, pages = found["accesses"], found["pages"]
    generate = found["generate"]["cpu_seconds"]
    reads = [found["reads"] / s / 1e6 for s in found["limit"]["cpu_seconds"]]
    rows = [
        row(NAME, "limit: reads at random", reads, "M/s", cores=1,
            note=f"of {found['table_bytes'] / 2**20:.0f} MiB, as much as a run keeps in all; as "
            "many in flight as the processor allows"),
        row(NAME, "generating accesses alone", [accesses / s / 1e6 for s in generate], "M/s",
            cores=1, note=f"{accesses:,} accesses to {pages:,} pages; processor time"),
    ]  # fmt: skip
    simulated = {
        policy: sum(r["seconds"] for r in found["rows"] if r["policy"] == policy)
        for policy in POLICIES
    }
    for policy in POLICIES:
        seconds = found["policies"][policy]["cpu_seconds"]
        engine = [whole - part for whole, part in zip(seconds, generate, strict=True)]
        rows += [
            row(NAME, f"{policy}, engine without generating",
                [accesses / s / 1e6 for s in engine], "M accesses/s", cores=1),
            row(NAME, f"{policy}, engine / limit",
                [accesses / s / 1e6 / most for s, most in zip(engine, reads, strict=True)],
                "of it", goal=SHARES.get(policy, ""), cores=1,
                note=f"limited by {LIMITED[policy]}"),
            row(NAME, f"{policy}, whole run", [accesses / s / 1e6 for s in seconds],
                "M accesses/s", cores=1, note="accesses generated, migrations included"),
            row(NAME, f"{policy}, simulated time / run time",
                [simulated[policy] / s for s in seconds], "x", goal=">= 1", cores=1),
        ]  # fmt: skip
    promotions = sum(r["promotions"] for r in found["rows"] if r["policy"] == "nomad")
    none, nomad = (found["policies"][p]["cpu_seconds"] for p in ("none", "nomad"))
    extra = [(b - a) / max(1, promotions) * 1e9 for a, b in zip(none, nomad, strict=True)]
    rows.append(
        row(NAME, "nomad, a promotion with all that follows", extra, "ns", cores=1,
            note="hint fault, copy, lists, demotion, shadow; run time beyond that of none; "
            "limited by looks into the lists, one after the other where kswapd walks them")
    )  # fmt: skip
    three = [
        sum(found["policies"][p]["cpu_seconds"][i] for p in ("nomad", "ssp", "tpp"))
        for i in range(len(generate))
    ]
    of_three = sum(simulated[policy] for policy in ("nomad", "ssp", "tpp"))
    rows += [
        row(NAME, "three policies, one seed", three, "s", cores=1),
        row(NAME, "three policies, simulated time / run time", [of_three / s for s in three], "x",
            goal=">= 0.5", cores=1),
    ]  # fmt: skip
    peak = max(found["policies"][p]["peak_bytes"] for p in POLICIES)
    rows.append(
        row(NAME, "peak memory a page", [peak / pages], "B", goal="<= 24", cores=1,
            note="everything in the process, the table that accesses are drawn from included")
    )  # fmt: skip
    return rows
