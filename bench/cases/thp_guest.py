"""What another kernel does under settings of huge pages, beside what ``nearfar thp`` predicts.

The guest has Debian's 6.12 and two processors, one for khugepaged. It is emulated, so a program
takes longer there than on the machine of the prediction. khugepaged's scans are scaled by it: in
both there are equally many in a run without huge pages.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import kernel
from inputs import Inputs
from measure import BenchError, Row, capture, run
from programs import HERE
from table import recorded, summary

from cases import thp
from cases.thp import COUNTERS, POLICIES, TENTHS
from nearfar.errors import NearfarError
from nearfar.guest import Guest, Hardware, Node

NAME = "thp-guest"
SUMMARY = "memory and merges under settings of huge pages in a guest, against the prediction"

#: Source and arguments of each program, below ``bench/programs``.
PROGRAMS = {
    "sparse": ("huge.c", "sparse 30"),
    "again": ("huge.c", "again 3"),
    "grow": ("huge.c", "grow 1"),
    "fork": ("huge.c", "fork 3"),
    "graph": ("graph.c", "180000"),
}
QUICK = ("sparse",)
MEMORY = 1 << 30
#: Seconds that a guest may take.
TIMEOUT = 3000

#: Runs the program once to know how long it takes, and once to look at its memory in the middle of
#: each tenth of that time. Memory that processes share counts in each, as in the prediction.
_SCRIPT = r"""
now() {{ read up rest </proc/uptime; echo $up; }}
count() {{ grep -E '^({counters}) ' /proc/vmstat; }}
look() {{
    sum=0
    for one in $1 $(cat /proc/$1/task/$1/children 2>/dev/null || true); do
        kib=$(sed -n 's/^RssAnon:[^0-9]*\([0-9]*\).*/\1/p' /proc/$one/status 2>/dev/null || true)
        sum=$((sum + ${{kib:-0}}))
    done
    echo "at $sum"
}}
set -e
echo "kernel $(uname -r)"
cd /sys/kernel/mm/transparent_hugepage
{policies}
"""
_POLICY = r"""
for file in hugepages-*/enabled; do echo never >$file; done
{settings}
echo "policy {policy}"
began=$(now)
/work/program {arguments} >/dev/null
ended=$(now)
seconds=$(awk "BEGIN {{ print $ended - $began }}")
part=$(awk "BEGIN {{ print $seconds / {tenths} }}")
echo "seconds $seconds"
count | sed 's/^/before /'
/work/program {arguments} >/dev/null &
sleep $(awk "BEGIN {{ print $part / 2 }}")
for tenth in {numbers}; do look $!; sleep $part; done
wait
count | sed 's/^/after /'
"""


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Each program in a guest under each policy, and predicted."""
    if not inputs.can_capture:
        inputs.remarks.append(f"{NAME} skipped: there is no QEMU to capture with")
        return []
    cells: list[dict[str, Any]] = []
    names = QUICK if quick else tuple(PROGRAMS)
    policies = ("never", "always") if quick else POLICIES
    try:
        for name in names:
            cells += compare(name, policies, inputs.scratch)
    except (OSError, NearfarError, BenchError) as error:
        inputs.remarks.append(f"{NAME} {'ended early' if cells else 'skipped'}: {error}")
    inputs.cells += cells
    return rows(cells)


def compare(name: str, policies: tuple[str, ...], scratch: Path) -> list[dict[str, Any]]:
    """The cells of a program."""
    print(f"bench: {NAME}: {name}", file=sys.stderr)
    source, arguments = PROGRAMS[name]
    folder = scratch / f"{NAME}-{name}"
    folder.mkdir()
    program = folder / "program"
    run(["gcc", "-O2", "-static", "-o", program, HERE / source])
    found = ask_guest(program, arguments, policies)
    capture([str(program), *arguments.split()], folder / "trace", kernel.ENVIRONMENT)
    usual = thp.predict(folder / "trace", MACHINE, ("never",))["never"]["predicted"]["seconds"]
    sleep_ms = thp.SLEEP_MS * usual / found["never"]["seconds"]
    predicted = thp.predict(folder / "trace", MACHINE, policies, sleep_ms, "6.12")
    return [
        {"program": name, "policy": policy, **found[policy], **predicted[policy]}
        for policy in policies
    ]


#: Costs of the prediction. Only their ratios matter.
MACHINE = "nvme"


def ask_guest(program: Path, arguments: str, policies: tuple[str, ...]) -> dict[str, Any]:
    """Run a program under each policy in a new guest; what was measured, by policy."""
    script = _SCRIPT.format(
        counters="|".join(COUNTERS.values()),
        policies="".join(
            _POLICY.format(
                settings="\n".join(
                    f"echo {word} >{file}" for file, word in thp.wanted(policy).items()
                ),
                policy=policy,
                arguments=arguments,
                tenths=TENTHS,
                numbers=" ".join(map(str, range(TENTHS))),
            )
            for policy in policies
        ),
    )
    done = Guest("x86_64", Hardware((Node(MEMORY, cpus=2),)), parameters=("norandmaps",)).run(
        ["sh", "run.sh"],
        files={"/work/program": program, "/work/run.sh": script.encode()},
        timeout=TIMEOUT,
    )
    if done.exit_code:
        said = (done.output + done.error).decode(errors="replace").strip()
        raise BenchError(f"{NAME}: {said[-300:]}")
    return parse(done.output.decode())


def parse(text: str) -> dict[str, Any]:
    """What a guest printed, by policy.

    Raises:
        BenchError: it ended early.
    """
    found = {}
    for part in text.split("\npolicy ")[1:]:
        policy = part.partition("\n")[0]
        course = [int(kib) << 10 for kib in re.findall(r"^at (\d+)$", part, re.M)]
        seconds = re.findall(r"^seconds (\S+)$", part, re.M)
        before, after = (
            dict(re.findall(rf"^{when} (\S+) (\d+)$", part, re.M)) for when in ("before", "after")
        )
        if len(course) != TENTHS or len(before) != len(after) or len(after) != len(COUNTERS):
            raise BenchError(f"{NAME}: the guest ended early: {part.splitlines()[-1]}")
        found[policy] = {
            "linux": text.partition("kernel ")[2].split()[0],
            "seconds": float(seconds[0]),
            "course": [[bytes_, 0] for bytes_ in course],
            "counts": {name: int(after[key]) - int(before[key]) for name, key in COUNTERS.items()},
        }
    return found


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """Shares of cells that are near enough."""
    if not cells:
        return []
    return thp.memory_rows(NAME, cells) + thp.count_rows(NAME, cells)


def figures() -> str:
    """All rows."""
    return summary(recorded(NAME)["rows"])


def table() -> str:
    """Every cell, those with the largest error of memory first."""
    lines = [
        f"| program | policy | memory, worst tenth | {' | '.join(COUNTERS)} |",
        f"|---|---|---:|{'---:|' * len(COUNTERS)}",
    ]
    for cell in sorted(recorded(NAME)["cells"], key=lambda cell: -abs(thp.worst_tenth(cell))):
        worst = f"{100 * thp.worst_tenth(cell):+.0f} %"
        words = [f"`{cell['program']}`", f"`{cell['policy']}`", worst]
        words += [f"{cell['counts'][name]:,}, {cell['predicted'][name]:,}" for name in COUNTERS]
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


#: By the name that the page has for it.
TABLES = {"figures": figures, "cells": table}
