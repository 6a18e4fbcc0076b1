"""Runs the paging study and libCacheSim in turn on the same pages, and compares miss counts."""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inputs import Inputs
from measure import BenchError, run

PEER = Path(__file__).with_name("peer.py")


@dataclass(frozen=True)
class Compared:
    """Measurements of all rounds.

    Attributes:
        study_seconds: the whole study on one core, each round.
        run_seconds: mean of libCacheSim's runs of one configuration on one core, each round.
        study: the engine's answer of the last round.
        configurations: page sizes x memory sizes of the study.
        distinct: different pairs of page size and frames: the runs that libCacheSim would need.
        checked: number of miss counts compared, all equal.
        requests: page references of libCacheSim's runs in one round.
        peer_peak_bytes: peak memory of libCacheSim, its mapped input included.
        how: description of libCacheSim's runs.
    """

    study_seconds: list[float]
    run_seconds: list[float]
    study: dict[str, Any]
    configurations: int
    distinct: int
    checked: int
    requests: int
    peer_peak_bytes: int
    how: str


def compare(
    inputs: Inputs, trace: Path, page_sizes: list[int], fractions: list[float], rounds: int
) -> Compared:
    """Run the default study on one core, and libCacheSim's Clock at a few of its configurations.

    Raises:
        BenchError: a miss count differs.
    """
    study_seconds, run_seconds = [], []
    study: dict[str, Any] = {}
    checked, requests, peak = 0, 0, 0
    for number in range(rounds):
        study = inputs.measure("study", trace, "--threads", "1", cores=1)
        study_seconds.append(study["study"]["seconds"][0])
        seconds, requests = [], 0
        for size in page_sizes:
            file = inputs.page_file(trace, size)
            cells = [c for c in study["cells"] if c["page_bytes"] == size]
            chosen = [c for c in cells if c["memory_fraction"] in fractions]
            runs = [f"clock:{c['frames']}" for c in chosen]
            done = run([sys.executable, PEER, file, *runs], cores=1)
            peak = max(peak, done.peak_bytes)
            for cell, found in zip(chosen, done.json(), strict=True):
                same(cell["references"], found["requests"], "page references", size, cell["frames"])
                same(cell["faults"], found["misses"], "CLOCK misses", size, cell["frames"])
                seconds.append(found["seconds"])
                requests += found["requests"]
                checked += 1
            if number == 0:
                # The study's TLB by default: 64 entries, LRU.
                found = run([sys.executable, PEER, file, "lru:64"], cores=1).json()[0]
                same(cells[0]["tlb_misses"], found["misses"], "TLB misses", size, 64)
                checked += 1
        run_seconds.append(statistics.mean(seconds))
    cells = study["cells"]
    distinct = len({(cell["page_bytes"], cell["frames"]) for cell in cells})
    sizes = ", ".join(str(size) for size in page_sizes)
    shares = ", ".join(f"{share:.0%}" for share in fractions)
    how = (
        f"libCacheSim 0.3.5 Clock(init_freq=1), process_trace over a mapped oracleGeneral file, "
        f"run at {len(page_sizes) * len(fractions)} configurations ({sizes} B x {shares} of "
        f"memory); their mean x {len(cells)}; its TLB runs are not counted"
    )
    return Compared(
        study_seconds, run_seconds, study, len(cells), distinct, checked, requests, peak, how
    )


def same(ours: int, peers: int, what: str, page_bytes: int, frames: int) -> None:
    """Raise an error if the two counts differ."""
    if ours != peers:
        raise BenchError(
            f"{what} at {page_bytes} B, {frames} frames: nearfar {ours}, libCacheSim {peers}; "
            "one of the two is wrong"
        )
