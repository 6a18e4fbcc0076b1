"""What `nearfar run` comes to, beside what is predicted of it from a trace and what is simulated.

Each program runs under NOMAD and SSP with half of its memory fast, on one processor. *Predicted* is
`nearfar run --predict`: the same runtime on a kernel that is counted. *Simulated* is `nearfar
tiering`: a kernel with both nodes mapped. What is judged is the ratio of SSP to NOMAD, as in SSP
(003).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, alone, capture, row, run
from programs import PROGRAMS
from table import recorded, summary

from cases.live import managed
from nearfar import live
from nearfar.reproduce._live import SCALE, MicroBenchmark
from nearfar.reproduce.tiering import FAST, SLOW
from nearfar.tiering import tiering

NAME = "predicted"
SUMMARY = "nearfar run beside what was predicted and simulated: SSP against NOMAD"

POLICIES = ("nomad", "ssp")
#: Loads and stores of the micro-benchmark.
MIXES = ("write", "mixed", "read")
#: Of the programs that the kernel is asked about, those of one process.
NAMES = ("sort", "sqlite", "cc1", "zstd", "graph")
#: Part of what a program needs that is fast.
PART = 0.5
QUICK_SCALE, QUICK_MIXES, QUICK_NAMES, QUICK_PART = 1 / 1024, ("write",), ("sort",), 0.02
#: Fewest shadows of NOMAD that a ratio is made of.
FEWEST = 1000
_PREDICT = """
import json, sys
from nearfar.predict import predict
load, part, asked = json.loads(sys.argv[1])
made = {}
if part is not None:
    free = predict(load, fast="4G", policy="none")
    asked |= {"fast": str(max(1 << 20, int(part * free.fast_bytes))), "costs": free.costs}
for policy in ("nomad", "ssp"):
    found = predict(load, policy=policy, shared_processor=True, **asked)
    asked["costs"] = found.costs
    made[policy] = {**found.counters, "seconds": found.seconds}
print(json.dumps({"predicted": made, "costs": asked["costs"], "fast": asked["fast"]}))
"""


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """A cell for each program and mix."""
    if (why := live.refused()) is not None:
        inputs.remarks.append(f"{NAME} skipped: {why}")
        return []
    cells = []
    program = MicroBenchmark(inputs.scratch, QUICK_SCALE if quick else SCALE)
    for mix in QUICK_MIXES if quick else MIXES:
        print(f"bench: {NAME}: micro-benchmark, {mix}", file=sys.stderr)
        cells.append(micro_benchmark(program, mix, rounds))
    if not inputs.can_capture:
        inputs.remarks.append(f"{NAME}: programs skipped: there is no QEMU to capture with")
    for one in PROGRAMS if inputs.can_capture else ():
        if one.name not in (QUICK_NAMES if quick else NAMES):
            continue
        if missing := one.missing():
            inputs.remarks.append(f"{NAME}: {one.name} skipped: no {missing[0]}")
            continue
        print(f"bench: {NAME}: {one.name}", file=sys.stderr)
        folder = inputs.scratch / f"predicted-{one.name}"
        folder.mkdir()
        command = one.make(folder, QUICK_PART if quick else 1)
        cells.append({"program": one.name} | of_program(command, folder, rounds))
    inputs.cells += cells
    return rows(cells)


def micro_benchmark(program: MicroBenchmark, mix: str, rounds: int) -> dict[str, Any]:
    """The cell of a mix: every policy with as many seeds as there are rounds."""
    memory = program.memory(FAST, SLOW)
    seconds = program.alone(mix)
    scale = repr(program.scale)
    asked = {"workload": {"scale": scale, "mix": mix}, "alone": seconds, **memory}
    cell: dict[str, Any] = {"program": f"micro-benchmark, {mix}", "alone": seconds, **memory}
    cell |= on_one_processor(_PREDICT, ["nomad-medium", None, asked])
    found = tiering("nomad-medium", policy=",".join(POLICIES), fast=FAST, slow=SLOW, mix=mix,
                    scale=scale, points=1)  # fmt: skip
    cell["simulated"] = simulated(found.rows)
    cell["lived"] = {policy: [] for policy in POLICIES}
    for seed in range(1, rounds + 1):
        for policy, runs in cell["lived"].items():
            lived = program.run(mix, policy, seed, FAST, SLOW).outcome
            runs.append({**lived.counters, "seconds": lived.seconds})
    return cell


def of_program(command: Sequence[str], folder: Path, rounds: int) -> dict[str, Any]:
    """The cell of a program."""
    trace = folder / "program.trace"
    capture(command, trace, kernel.ENVIRONMENT, "--no-fetch")
    words = alone(kernel.ENVIRONMENT, command)
    taken = statistics.median(run(words, cores=1, discard=True).seconds for _ in range(3))
    cell: dict[str, Any] = {"alone": taken, "far": "shm"}
    cell |= on_one_processor(_PREDICT, [str(trace), PART, {"alone": taken, "far": "shm"}])
    fast = cell["fast"]
    found = tiering(trace, policy=",".join(POLICIES), fast=fast, slow="4G", filter="none")
    cell["simulated"] = simulated(found.rows)
    cell["lived"] = {policy: [] for policy in POLICIES}
    for _ in range(rounds):
        for policy, runs in cell["lived"].items():
            lived = managed(command, int(fast), policy, "shm", kernel.ENVIRONMENT)
            runs.append({**lived.counters, "seconds": lived.seconds})
    return cell


def simulated(found: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Counts and seconds of each policy, all phases together."""
    counts = ("promotions", "shadow_copies", "shadow_faults", "demotions_copied",
              "demotions_remapped", "hint_faults", "aborts", "seconds")  # fmt: skip
    return {
        policy: {
            count: sum(one[count] for one in found if one["policy"] == policy) for count in counts
        }
        for policy in POLICIES
    }


def on_one_processor(script: str, given: Any) -> dict[str, Any]:
    """What a script prints, in a process that may use the last processor only."""
    core = max(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(core), sys.executable, "-c", script, json.dumps(given)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise BenchError(f"{NAME}: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def median(cell: Mapping[str, Any], world: str, policy: str, count: str) -> float:
    """A count or the seconds of one policy, in one world."""
    found = cell[world][policy]
    if world == "lived":
        return float(statistics.median(one[count] for one in found))
    return float(found[count])


def ratio(cell: Mapping[str, Any], world: str, count: str) -> float | None:
    """SSP over NOMAD; None where NOMAD has too few for a ratio."""
    nomad = median(cell, world, "nomad", count)
    if count != "seconds" and nomad < FEWEST:
        return None
    return median(cell, world, "ssp", count) / nomad


def rows(cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """How far the ratios predicted and simulated are from those lived, and the counts predicted."""
    made = []
    for count, what in (("shadow_copies", "shadow copies"), ("seconds", "time")):
        for world in ("predicted", "simulated"):
            distances = {}
            for cell in cells:
                ours, lived = ratio(cell, world, count), ratio(cell, "lived", count)
                if ours is not None and lived is not None:
                    distances[cell["program"]] = abs(ours - lived)
            for name, distance in distances.items():
                made.append(row(NAME, f"SSP / NOMAD, {what}, {name}: {world} and lived differ by",
                                [distance], "", goal="<= 0.1"))  # fmt: skip
    for cell in cells:
        for count in ("promotions", "seconds"):
            found = [
                median(cell, "predicted", policy, count) / median(cell, "lived", policy, count)
                for policy in POLICIES
                if median(cell, "lived", policy, count) >= (FEWEST if count != "seconds" else 0)
            ]
            if found:
                made.append(row(NAME, f"predicted / lived, {count}, {cell['program']}", found, "x"))
    return made


def ratios_shown() -> str:
    """SSP over NOMAD in each world, a line for each program, as a table of the docs."""
    worlds = ("lived", "predicted", "simulated")
    lines = [f"| SSP / NOMAD | | {' | '.join(worlds)} |", "|---|---|" + 3 * "---:|"]
    for count, what in (("shadow_copies", "shadow copies"), ("seconds", "time")):
        for cell in recorded(NAME)["cells"]:
            found = [ratio(cell, world, count) for world in worlds]
            shown = ["" if one is None else f"{one:.2f}" for one in found]
            lines.append(f"| {cell['program']} | {what} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def every_cell() -> str:
    """Every count of every cell, as a table of the docs."""
    worlds = " | ".join(("lived", "predicted", "simulated"))
    lines = [f"| program | | nomad: {worlds} | ssp: {worlds} |", "|---|---|" + 6 * "---:|"]
    for cell in recorded(NAME)["cells"]:
        for count, what in (
            ("hint_faults", "hint faults"),
            ("promotions", "promotions"),
            ("shadow_copies", "shadow copies"),
            ("shadow_faults", "shadow faults"),
            ("demotions_copied", "copied down"),
            ("demotions_remapped", "remapped"),
            ("aborts", "aborts"),
            ("seconds", "seconds"),
        ):
            shown = []
            for policy in POLICIES:
                for world in ("lived", "predicted", "simulated"):
                    number = median(cell, world, policy, count)
                    shown.append(f"{number:,.2f}" if count == "seconds" else f"{number:,.0f}")
            name = cell["program"] if count == "hint_faults" else ""
            lines.append(f"| {name} | {what} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def figures() -> str:
    """What is judged."""
    return summary(one for one in recorded(NAME)["rows"] if one["goal"])


#: By the name that the page has for them.
TABLES = {"rows": figures, "ratios": ratios_shown, "cells": every_cell}
