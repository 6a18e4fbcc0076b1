"""Processor time of random references under ``nearfar run``, against swap on zram."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

import kernel
from inputs import Inputs
from measure import BenchError, Row, judged, ratios, row
from programs import HERE
from table import figures

from nearfar import live

NAME = "live"
SUMMARY = "nearfar run against swap on zram: processor time of random references"

#: Pages of the program, references, and repetitions for each round.
PAGES, REFERENCES, TURNS = 16384, 100_000, 7
QUICK_PAGES, QUICK_REFERENCES, QUICK_TURNS = 2048, 5_000, 1
#: Share of the pages that fits in fast memory.
PART = 0.5
#: `none` moves no pages: it shows the cost of the runtime itself. `ssp`: selective shadow paging
#: (paper 003).
POLICIES = ("none", "tpp", "nomad", "ssp")
#: The far tier: compressed by an algorithm about as fast as zram's lzo-rle.
FAR = "lz4"
#: Attempts at a run under a limit, until one succeeds.
TRIES = 5
#: Factor of the references if all pages fit, so that the program runs for seconds.
REFERENCE_FACTOR = 300


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time `nearfar run` and its peer in turn, on one processor."""
    if (why := live.refused()) is not None:
        inputs.remarks.append(f"{NAME} skipped: {why}")
        return []
    pages, references = (QUICK_PAGES, QUICK_REFERENCES) if quick else (PAGES, REFERENCES)
    turns = QUICK_TURNS if quick else TURNS * rounds
    program = inputs.scratch / "touch"
    built = subprocess.run(
        ["cc", "-O2", "-o", program, HERE / "touch.c", "-lm"], capture_output=True, text=True
    )
    if built.returncode != 0:
        raise BenchError(f"touch.c: {built.stderr.strip().splitlines()[-1]}")
    fast = int(pages * kernel.PAGE * PART)
    rows = fits(program, pages, references, turns)
    try:
        where = kernel.controller(Path("/proc/mounts").read_text(encoding="ascii"))
        with kernel.swapping(4 * pages * kernel.PAGE):
            for order, writes in product(("uniform", "zipf"), (0, 50)):
                words = [str(program), str(pages), str(references), str(writes), order]
                rows += against_swap(where, words, fast, turns)
    except kernel.Unavailable as error:
        inputs.remarks.append(f"{NAME} beside zram skipped: {error}")
    return rows


def against_swap(
    where: kernel.Controller, words: Sequence[str], fast: int, turns: int
) -> list[Row]:
    """Ratios of processor time for one mix of references; ``words`` is its command."""
    swapped, lived = [], {policy: [] for policy in POLICIES}
    faults, promotions = [], {policy: [] for policy in POLICIES}
    group = f"nearfar-bench-{os.getpid()}"
    for _ in range(turns):
        # The OOM killer ends some runs.
        tries = (kernel.run_limited(where, words, fast, group, poll=False) for _ in range(TRIES))
        ran = next((one for one in tries if one.exit_code == 0), None)
        if ran is None:
            raise BenchError(f"touch: ended {TRIES} times under a limit of {fast} bytes")
        swapped.append(ran.processor_seconds)
        faults.append(ran.major)
        for policy in POLICIES:
            outcome = managed(words, fast, policy)
            lived[policy].append(seconds(outcome))
            promotions[policy].append(outcome.counters["promotions"])
    made = []
    _, pages, references, writes, order = words
    for policy in POLICIES:
        values = ratios(lived[policy], swapped)
        shadows_help = policy == "ssp" and writes == "0" and order == "zipf"
        goal = "<= 0.9" if shadows_help else "<= 1.1"
        one = row(
            NAME, f"{policy} / zram, {order}, {writes} % writes", values, "x", goal=goal, cores=1,
            note=f"{FAR}; {pages} pages, {references} references, {PART:.0%} of the pages fast; "
            f"{sum(faults) // turns:,} faults from zram, "
            f"{sum(promotions[policy]) // turns:,} promotions",
        )  # fmt: skip
        made.append(judged(one, values))
    return made


def fits(program: Path, pages: int, references: int, turns: int) -> list[Row]:
    """The overhead if all pages fit, and the cost of a fault on a page in shared memory."""
    words = [str(program), str(pages), str(REFERENCE_FACTOR * references), "50", "zipf"]
    roomy = 2 * pages * kernel.PAGE
    alone, lived = [], []
    for _ in range(turns):
        alone.append(processor_seconds(words))
        lived.append(seconds(managed(words, roomy, "ssp")))
    values = ratios(lived, alone)
    name = "ssp / program alone, all fits"
    rows = [judged(row(NAME, name, values, "x", goal="<= 1.02", cores=1), values)]
    words = [str(program), str(pages), str(references), "0", "uniform"]
    costs = []
    for _ in range(turns):
        outcome = managed(words, int(pages * kernel.PAGE * PART), "none", far="shm")
        counters = outcome.counters
        # Window faults: the reference is let through without a promotion.
        faults = counters["window_faults"] + counters["hint_faults"]
        costs.append(1e6 * (seconds(outcome) - processor_seconds(words)) / faults)
    note = "processor time beyond the program's own, a fault; first touches and demotions included"
    name = "reference let through to shared memory"
    made = row(NAME, name, costs, "us", goal="<= 15", cores=1, note=note)
    return [*rows, judged(made, costs)]


def managed(
    words: Sequence[str],
    fast: int,
    policy: str,
    far: str = FAR,
    environment: Mapping[str, str] | None = None,
) -> live.Outcome:
    """Run a program under `nearfar run`, pinned to one processor; its output is discarded."""
    script = (
        "import json, os, sys\nfrom nearfar import live\n"
        "os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\n"
        "words, options = json.loads(sys.argv[1])\n"
        "print(live.run(words, **options).to_json(), file=sys.stderr)"
    )
    request = json.dumps([list(words), {"fast": str(fast), "policy": policy, "far": far}])
    done = subprocess.run(
        [sys.executable, "-c", script, request], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, env=environment,
    )  # fmt: skip
    if done.returncode != 0:
        raise BenchError(f"nearfar run: {done.stderr.strip().splitlines()[-1]}")
    outcome = live.Outcome(**json.loads(done.stderr[done.stderr.index("{") :]))
    if outcome.exit_code != 0:
        why = f"{words[0]} ended with {outcome.exit_code}: {outcome.why}"
        raise BenchError(f"nearfar run: {why}")
    return outcome


def seconds(outcome: live.Outcome) -> float:
    """Processor seconds of the program and its manager."""
    return outcome.user_seconds + outcome.system_seconds


def processor_seconds(words: Sequence[str]) -> float:
    """Processor seconds of a program without nearfar, on the same processor."""
    core = max(os.sched_getaffinity(0))
    child = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, preexec_fn=lambda: os.sched_setaffinity(0, {core})
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise BenchError(f"touch: ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime


#: Tables of docs/validation.md, by name.
TABLES = {"rows": figures(NAME)}
