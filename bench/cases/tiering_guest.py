"""Linux's own tiering in a guest, against ``--policy autonuma``.

The guest runs Debian's Linux 6.12 with one processor and two memory nodes. Its clock counts
instructions (``-icount``), so both nodes are equally fast, and decisions by time are reproducible.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inputs import Inputs
from measure import BenchError, Row, row
from programs import HERE
from table import figures, recorded

from nearfar import machine as machines
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Link, Node
from nearfar.tiering import tiering

NAME = "tiering-guest"
SUMMARY = "Linux's tiering in a guest: pages moved and where they are, against the prediction"

MIB = 1 << 20
PAGE = 4096
#: Bytes of the two nodes.
FAST, SLOW = 256 * MIB, 640 * MIB
#: Points of a run at which counters and placement are compared.
TENTHS = 10
#: Time limit of a guest, seconds.
TIMEOUT = 3600
#: Values of ``lru_gen/enabled``: classic LRU lists, and multi-generational LRU, Debian's default.
LISTS = {"classic": "0", "mglru": "7"}
#: Counters of ``/proc/vmstat`` whose sum is a column of `nearfar tiering`.
COUNTERS = {
    "promotions": ("pgpromote_success",),
    "demotions": ("pgdemote_kswapd", "pgdemote_direct"),
    "hint_faults": ("numa_hint_faults",),
}
#: Tolerances: of a count, percent; of the shares of accesses and pages in fast memory, points.
COUNT_ERROR, SHARE_ERROR = 25, 5


@dataclass(frozen=True)
class Program:
    """Arguments, which ``programs/moving.c`` describes; ``scan_max``: ``scan_period_max_ms``."""

    name: str
    cold: int = 49152
    hot: int = 65536
    deviation: float = 0.08
    shift: float = 0.3
    rounds: int = 5
    operations: int = 3_000_000
    work: int = 20
    scan_max: int = 10_000


PROGRAMS = (
    Program("fits"),
    Program("too large", cold=16384, hot=110592, deviation=0.3),
    Program("moves quickly", rounds=30, operations=500_000),
    Program("busy", operations=20_000_000, work=1),
    # Linux's default: a scan of all memory takes one and a half minutes.
    Program("default scans", operations=6_000_000, scan_max=60_000),
)
QUICK = (Program("fits", rounds=2, operations=200_000),)
#: Every program with each kind of page lists.
RUNS = [(one, lists) for lists in LISTS for one in PROGRAMS]

#: The guest's script. It reduces effects that `nearfar tiering` does not model: no page of the
#: program is in `ZONE_DMA`, per-CPU lists hold few free pages, and no watermark is boosted.
_SCRIPT = """
set -e
grep -H . /sys/devices/virtual/memory_tiering/memory_tier*/nodelist
[ "$(ls /sys/devices/virtual/memory_tiering | grep -c memory_tier)" -gt 1 ] || exit 0
echo "kernel $(uname -r)"
echo 1 >/proc/sys/vm/lowmem_reserve_ratio
echo 1000000 >/proc/sys/vm/percpu_pagelist_high_fraction
echo 0 >/proc/sys/vm/watermark_boost_factor
echo 3 >/proc/sys/vm/drop_caches
echo 1 >/proc/sys/vm/compact_memory
echo {lists} >/sys/kernel/mm/lru_gen/enabled
echo 1 >/sys/kernel/mm/numa/demotion_enabled
echo 2 >/proc/sys/kernel/numa_balancing
mount -t debugfs debugfs /sys/kernel/debug
echo {scan_max} >/sys/kernel/debug/sched/numa_balancing/scan_period_max_ms
cat /proc/zoneinfo
./moving {arguments}
"""


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Run each program in a guest, and simulate it."""
    cells: list[dict[str, Any]] = []
    program = inputs.scratch / "moving"
    try:
        source = HERE / "moving.c"
        subprocess.run(["cc", "-O2", "-static", "-o", program, source, "-lm"], check=True)
        runs = [(one, "classic") for one in QUICK] if quick else RUNS
        # In parallel, which does not disturb the guests' virtual clocks.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for cell in pool.map(lambda one: measure(*one, program), runs):
                cell["predicted"] = predict(cell, inputs.scratch)
                cells.append(cell)
    except (OSError, subprocess.CalledProcessError, NearfarError) as error:
        inputs.remarks.append(f"{NAME} {'ended early' if cells else 'skipped'}: {error}")
    inputs.cells += cells
    return rows(cells)


def measure(one: Program, lists: str, program: Path) -> dict[str, Any]:
    """Run the compiled ``program`` with ``lists`` in a new guest; a cell of the kernel's counts."""
    print(f"bench: {NAME}: {one.name}, {lists} lists", file=sys.stderr)
    words = [one.cold, one.hot, one.deviation, one.shift, one.rounds, one.operations, one.work]
    arguments = " ".join(map(str, words))
    script = _SCRIPT.format(lists=LISTS[lists], scan_max=one.scan_max, arguments=arguments)
    # Nanoseconds and bytes a second.
    near, far = Link(80, 100 << 30), Link(250, 25 << 30)
    done = Guest(
        "x86_64",
        Hardware((Node(FAST, cpus=1), Node(SLOW)), links={(0, 0): near, (0, 1): far}),
        icount=0,  # 2^0 ns an instruction
        parameters=("transparent_hugepage=never", "norandmaps"),
    ).run(
        ["sh", "run.sh"],
        files={"/work/moving": program, "/work/run.sh": script.encode()},
        timeout=TIMEOUT,
    )
    if done.exit_code:
        raise NearfarError(f"{one.name}: {done.error.decode(errors='replace').strip()[-300:]}", 1)
    return {"program": asdict(one), "lists": lists, **parse(done.output.decode())}


def parse(text: str) -> dict[str, Any]:
    """Parse the output of :data:`_SCRIPT`.

    Raises:
        BenchError: the kernel put all memory in one tier, or the output is incomplete.
    """
    tiers = re.findall(r"memory_tier\d+/nodelist:(\S+)", text)
    if len(tiers) < 2:
        raise BenchError("the guest's kernel has one memory tier: it demotes nothing")
    zones = {}
    for node, name, about in re.findall(r"Node (\d+), zone +(\w+)\n((?: .*\n)+)", text):
        counts = re.findall(r"(pages free|min|low|high|promo|managed) +(\d+)\n", about)
        zones[f"{node} {name}"] = {key: int(count) for key, count in counts}
    program = text[text.find("\noperation ") :]
    # Lines "name value". Each "at" begins a point: one after the first touch of all memory, and one
    # after each tenth of the run.
    points: list[dict[str, float]] = [{}]
    for line in program.split("\n"):
        name, _, value = line.partition(" ")
        if name == "at":
            points.append({})
        if name:
            points[-1][name] = float(value)
    start, *tenths = points
    if not zones or len(tenths) != TENTHS + 1:
        raise BenchError(f"the program ended early: {' / '.join(text.splitlines()[-2:])}")
    return {
        "linux": text.partition("\nkernel ")[2].split()[0],
        "zones": {name: zone for name, zone in zones.items() if zone["managed"]},
        "operation_ns": start["operation"],
        "migration_ns": start["migration"],
        "free": int(start["nr_free_pages"]),  # of the fast node
        "tenths": tenths,
    }


def predict(cell: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Counts and shares of ``nearfar tiering`` for the same program and memory."""
    one = Program(**cell["program"])
    pages = one.cold + one.hot
    workload = scratch / "moving.toml"
    workload.write_text(described(one, cell["operation_ns"]), encoding="utf-8")
    zones = cell["zones"]
    # Page tables take fast memory from the program.
    fast = cell["free"] - zones["0 DMA"]["pages free"] - pages // 512
    slow = zones["1 DMA32"]["pages free"]
    # At least ten points in a tenth of the run: the share of accesses hardly changes between two.
    points = -(-10 * TENTHS // one.rounds)
    found = tiering(
        workload,
        policy="autonuma",
        machine=machines.load("cxl-a", set=equal_nodes(cell["migration_ns"])),
        scale="1/1",
        rounds=one.rounds,
        points=points,
        fast=f"{fast * 4}KiB",
        slow=f"{slow * 4}KiB",
        knobs={
            "autonuma.min_free": f"{zones['0 DMA32']['min'] * 4}KiB",
            "autonuma.scan_period_max": f"{one.scan_max}ms",
            # The kernel has one setting for both.
            "autonuma.adjust_period": f"{one.scan_max}ms",
            "autonuma.lru_gen": str(cell["lists"] == "mglru").lower(),
        },
    )
    step = one.rounds * points // TENTHS
    at = found.series[step - 1 :: step]
    counts = {name: sum(int(r[name]) for r in found.rows) for name in COUNTERS}  # type: ignore[literal-required]
    return {
        **counts,
        "promoted": [point["promotions"] for point in at],
        "demoted": [point["demotions"] for point in at],
        "fast_pages": [point["fast_bytes"] // PAGE for point in at],
        "hits": [point["fast_hit_ratio"] for point in at],
        "seconds": at[-1]["seconds"],
    }


def equal_nodes(migration_ns: float) -> dict[str, str]:
    """Settings for a machine with equal, very fast nodes, so that an operation takes only its work.

    Migrations take twice the measured time, because promotions wait for kswapd on one processor.
    """
    instant = {"read_latency": "1ns"} | {
        f"{who}{way}_bandwidth": "1000GB/s" for who in ("", "thread_") for way in ("read", "write")
    }
    return {
        **{
            f"node.{node}.local.{key}": value
            for node in ("fast", "slow")
            for key, value in instant.items()
        },
        "cost.page_walk": "1ns",
        # Time to arm a page for hint faults, measured in the guest with ftrace.
        "cost.page_scan": "400ns",
        "cost.page_migration": f"{2 * migration_ns:.0f}ns",
    }


def described(one: Program, operation_ns: float) -> str:
    """The text of a workload file that describes the program."""
    return f"""\
description = "What programs/moving.c does"
source = "{NAME}"
access = "64B"
operations = {one.operations}
work = "{operation_ns:.1f}ns"
mix = "read"
[[array]]
size = "{one.cold * 4}KiB"
distribution = "uniform"
[[array]]
size = "{one.hot * 4}KiB"
distribution = "normal"
deviation = {one.deviation}
shift = {one.shift}
weight = 3
"""


def counted(cell: Mapping[str, Any], name: str) -> int:
    """The kernel's count of a column of :data:`COUNTERS` during the program."""
    first, last = cell["tenths"][0], cell["tenths"][-1]
    return sum(int(last[key] - first[key]) for key in COUNTERS[name])


def count_error(cell: Mapping[str, Any], name: str) -> float:
    """Error of a predicted count, percent; positive if too high."""
    return 100 * (cell["predicted"][name] / max(counted(cell, name), 1) - 1)


def share_errors(cell: Mapping[str, Any]) -> list[float]:
    """Error of the predicted share of accesses to fast memory at each tenth, points."""
    pairs = zip(cell["predicted"]["hits"], cell["tenths"][1:], strict=True)
    return [100 * (ours - theirs["hits"]) for ours, theirs in pairs]


def page_errors(cell: Mapping[str, Any]) -> list[float]:
    """Error of the predicted share of pages on the fast node at each tenth, points."""
    pages = cell["program"]["cold"] + cell["program"]["hot"]
    pairs = zip(cell["predicted"]["fast_pages"], cell["tenths"][1:], strict=True)
    return [100 * (ours - at["cold"] - at["hot"]) / pages for ours, at in pairs]


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """Shares of cells and tenths within tolerance, for each kind of page lists."""
    made = []
    for lists in LISTS:
        own = [cell for cell in cells if cell["lists"] == lists]
        if not own:
            continue
        for name in COUNTERS:
            near = [abs(count_error(cell, name)) <= COUNT_ERROR for cell in own]
            what = f"{lists}: programs with {name} within {COUNT_ERROR} %"
            made.append(row(NAME, what, [sum(near) / len(near)], "", goal=">= 1"))
        for what, errors in (("pages on", page_errors), ("accesses to", share_errors)):
            near = [abs(error) <= SHARE_ERROR for cell in own for error in errors(cell)]
            what = (
                f"{lists}: tenths with the share of {what} fast memory within {SHARE_ERROR} points"
            )
            made.append(row(NAME, what, [sum(near) / len(near)], "", goal=">= 1"))
    return made


def table() -> str:
    """Every cell: counts, and shares of accesses by tenth; each measured, then predicted."""
    lines = [
        f"| program | lists | {' | '.join(COUNTERS)} | accesses to fast memory by tenth |",
        f"|---|---|{'---:|' * len(COUNTERS)}---|",
    ]
    for cell in recorded(NAME)["cells"]:
        words = [cell["program"]["name"], cell["lists"]]
        for name in COUNTERS:
            said = f"{cell['predicted'][name]:,} ({count_error(cell, name):+.0f} %)"
            words.append(f"{counted(cell, name):,}, {said}")
        pairs = zip(cell["tenths"][1:], cell["predicted"]["hits"], strict=True)
        words.append(", ".join(f"{100 * at['hits']:.0f}/{100 * ours:.0f}" for at, ours in pairs))
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


#: Tables of docs/validation.md, by name.
TABLES = {"figures": figures(NAME), "cells": table}
