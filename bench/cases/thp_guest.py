"""Transparent huge pages in a guest with another kernel, compared with ``nearfar thp``.

The guest runs Debian's Linux 6.12 on two processors, so that khugepaged does not delay the program.
The processors are emulated, so a run takes longer than predicted. The prediction therefore scales
khugepaged's scan interval by predicted / measured run time without huge pages.
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
from table import figures, recorded

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
#: Programs of a quick run.
QUICK = ("sparse",)
#: Bytes of memory of the guest.
MEMORY = 1 << 30
#: Time limit of a guest, seconds.
TIMEOUT = 3000

#: The guest's script. ``look`` prints the KiB of private memory of a process and its children; a
#: page shared after a fork counts in each process, as in the prediction.
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
#: Runs the program twice: for its duration and counters, then to sample its memory in the middle of
#: each tenth of that duration.
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
    """Measure each program under each policy in a guest, and predict it."""
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
    """A cell for each policy: what the guest measured, and the prediction."""
    print(f"bench: {NAME}: {name}", file=sys.stderr)
    source, arguments = PROGRAMS[name]
    folder = scratch / f"{NAME}-{name}"
    folder.mkdir()
    program = folder / "program"
    run(["gcc", "-O2", "-static", "-o", program, HERE / source])
    measured = measure(program, arguments, policies)
    capture([str(program), *arguments.split()], folder / "trace", kernel.ENVIRONMENT)
    seconds = thp.predict(folder / "trace", MACHINE, ("never",))["never"]["predicted"]["seconds"]
    sleep_ms = thp.SLEEP_MS * seconds / measured["never"]["seconds"]
    predicted = thp.predict(folder / "trace", MACHINE, policies, sleep_ms, "6.12")
    return [
        {"program": name, "policy": policy, **measured[policy], **predicted[policy]}
        for policy in policies
    ]


#: The machine of the prediction: only ratios of its costs matter, because the scan interval is
#: scaled.
MACHINE = "nvme"


def measure(program: Path, arguments: str, policies: tuple[str, ...]) -> dict[str, Any]:
    """Run a program under each policy in a new guest; return the measurements by policy."""
    script = _SCRIPT.format(
        counters="|".join(COUNTERS.values()),
        policies="".join(
            _POLICY.format(
                settings="\n".join(
                    f"echo {word} >{file}" for file, word in thp.setting_files(policy).items()
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
    """Parse the output of :data:`_SCRIPT` into measurements by policy.

    Raises:
        BenchError: the output of a policy is incomplete.
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
            # 0: bytes in huge pages are not measured here.
            "course": [[bytes_, 0] for bytes_ in course],
            "counts": {name: int(after[key]) - int(before[key]) for name, key in COUNTERS.items()},
        }
    return found


def rows(cells: list[dict[str, Any]]) -> list[Row]:
    """Shares of cells whose prediction is within tolerance."""
    if not cells:
        return []
    return thp.memory_rows(NAME, cells) + thp.count_rows(NAME, cells)


def table() -> str:
    """Every cell as Markdown, largest error of memory first; counts as "measured, predicted"."""
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


#: Tables of docs/validation.md, by name.
TABLES = {"figures": figures(NAME), "cells": table}
