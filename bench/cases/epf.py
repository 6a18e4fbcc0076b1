"""Time of ``pigz`` under ``nearfar run`` with little fast memory, by the choice of ``--epf``.

``--epf`` decides whether a thread sleeps or busy-waits in an embedded page fault (EPF). Far memory
is a DRAM-interface SSD (UMD, paper 002) or a file.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inputs import Inputs
from measure import BenchError, Row, judged, ratios, row
from table import recorded, summary

from nearfar import live

NAME = "epf"
SUMMARY = "pigz under nearfar run --far umd and file: time with and without sleeping during a fetch"

#: Bytes of the text, and repetitions for each round.
TEXT, TURNS = 45 << 20, 3
QUICK_TEXT, QUICK_TURNS = 2 << 20, 1
#: Policies of ``--epf``; the first, which never sleeps, is the base of the ratios.
POLICIES = ("none", "all", "smart:50us")
#: pigz compresses, because its blocks are then anonymous memory; `pigz -d` uses file pages, which
#: nearfar run does not manage.
COMPRESS = ("pigz", "-k", "-c", "-p", "4", "-b", "2048", "text")
UMD = {"far": "umd:umd"}
FILE = {"far": "file:far", "far_latency": "100us"}
#: Program, fast memory, far tier.
CELLS = ((COMPRESS, "16M", UMD), (COMPRESS, "28M", UMD), (COMPRESS, "28M", FILE))

_RUN = (
    "import json, sys\nfrom nearfar import live\nwords, options = json.loads(sys.argv[1])\n"
    "print(live.run(words, **options).to_json(), file=sys.stderr)"
)


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Run each cell under every policy in turn, on all processors."""
    if (why := live.refused()) is not None:
        inputs.remarks.append(f"{NAME} skipped: {why}")
        return []
    if shutil.which("pigz") is None:
        inputs.remarks.append(f"{NAME} skipped: no pigz")
        return []
    folder = inputs.scratch / NAME
    folder.mkdir()
    write_text(folder / "text", QUICK_TEXT if quick else TEXT)
    cells = []
    for words, fast, far in CELLS:
        options = {"fast": fast, "policy": "tpp", **far}
        # The program's output without nearfar.
        expected = subprocess.run(words, cwd=folder, capture_output=True, check=True).stdout
        cell: dict[str, Any] = {
            "program": " ".join(words),
            "fast": fast,
            "far": " ".join(far.values()),
        }
        cell["lived"] = {policy: [] for policy in POLICIES}
        for _ in range(QUICK_TURNS if quick else TURNS * rounds):
            for policy, runs in cell["lived"].items():
                runs.append(managed(folder, words, {**options, "epf": policy}, expected))
        cells.append(cell)
    inputs.cells += cells
    return rows(cells)


def write_text(path: Path, size: int) -> None:
    """Write random words to a file, the same in every run."""
    draw = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    known = ["".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(20_000)]
    with path.open("w", encoding="ascii") as file:
        while file.tell() < size:
            file.write(" ".join(draw.choices(known, k=2000)) + "\n")


def managed(
    folder: Path, words: Sequence[str], options: Mapping[str, str], expected: bytes
) -> dict[str, float]:
    """Times and counts of one run under `nearfar run`; an error if its output is not expected."""
    arguments = json.dumps([list(words), dict(options)])
    done = subprocess.run([sys.executable, "-c", _RUN, arguments], cwd=folder, capture_output=True)
    errors = done.stderr.decode()
    if done.returncode != 0:
        raise BenchError(f"nearfar run: {errors.strip().splitlines()[-1]}")
    outcome = json.loads(errors[errors.index("{") :])
    if outcome["exit_code"] != 0:
        raise BenchError(f"{words[0]} ended with {outcome['exit_code']}: {outcome['why']}")
    if done.stdout != expected:
        raise BenchError(f"{' '.join(words)}: prints something else under nearfar run")
    seen, seconds = outcome["counters"], outcome["seconds"]
    fetches = max(seen["fetches"], 1)
    processor = outcome["user_seconds"] + outcome["system_seconds"]
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "processors": processor / seconds,
        "faults": seen["faults"],
        "services": seen["fetches"],  # the term of docs/ssd.md for fetches
        "predicted_us": seen["fetches_predicted_ns"] / fetches / 1000,
        "took_us": seen["fetches_ns"] / fetches / 1000,
        "slept": seen["slept"],
        "stalled": seen["stalled"],  # busy-waited
    }


def rows(cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Run times of the policies that sleep, relative to the policy that never does."""
    made = []
    for cell in cells:
        times = {name: [one["seconds"] for one in runs] for name, runs in cell["lived"].items()}
        # Without a fetch the policies do not differ.
        fetched = any(one["services"] for runs in cell["lived"].values() for one in runs)
        for policy in POLICIES[1:]:
            values = ratios(times[policy], times[POLICIES[0]])
            name = (
                f"{policy} / {POLICIES[0]}, {cell['program']}, {cell['fast']} fast, {cell['far']}"
            )
            one = row(NAME, name, values, "x", goal="<= 1" if fetched else "")
            made.append(judged(one, values) if fetched else one)
    return made


def figures() -> str:
    """The rows with a goal, as a table of the documentation."""
    return summary(one for one in recorded(NAME)["rows"] if one["goal"])


def every_cell() -> str:
    """Medians of every cell, as a table of the documentation."""
    lines = [
        "| program, fast memory, far tier | epf | s | processor s | processors | faults | services "
        "| predicted, us | took, us | slept | busy-waited |",
        "|---|---|" + 9 * "---:|",
    ]
    for cell in recorded(NAME)["cells"]:
        for policy, runs in cell["lived"].items():
            median = {name: statistics.median(one[name] for one in runs) for name in runs[0]}
            shown = [
                f"{median[name]:.2f}" for name in ("seconds", "processor_seconds", "processors")
            ]
            shown += [f"{median[name]:,.0f}" for name in (
                "faults", "services", "predicted_us", "took_us", "slept", "stalled")]  # fmt: skip
            name = f"`{cell['program']}`, {cell['fast']}, {cell['far']}"
            name = name if policy == POLICIES[0] else ""
            lines.append(f"| {name} | {policy} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


#: Tables of docs/validation.md, by name.
TABLES = {"rows": figures, "cells": every_cell}
