"""Speed of the ssd study on pigz, and of the flash simulation under constant garbage collection."""

from __future__ import annotations

import shutil
from pathlib import Path

from inputs import Inputs
from measure import Row, row

NAME = "ssd"
SUMMARY = "the ssd study on pigz, and flash commands of a drive under constant garbage collection"
#: Settings of `--epf` (embedded page faults): for which of them the thread sleeps; else it stalls.
POLICIES = ("none", "all", "smart:50us")
#: MQSim (CMU-SAFARI/MQSim@7ec40e3), measured once on one core of a similar machine: its three
#: sample workloads, and a small geometry on which it collects garbage.
MQSIM = "MQSim, measured once: 0.59 M commands/s, or 0.119 M requests/s where it collects garbage"


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time one thread, in processor time; the device's DRAM holds 70 % of the program's pages."""
    trace, name = inputs.captured, "gzip"
    if inputs.can_capture and shutil.which("pigz"):
        trace, name = inputs.pigz, "pigz"
    else:
        inputs.remarks.append("pigz or QEMU is not installed: the capture of gzip replaces pigz's")
    more = ["--rounds", str(rounds)]
    found = inputs.measure(
        "ssd", trace, *more, "--share", "0.7", "--epf", ",".join(POLICIES), cores=1
    )
    rows = []
    for policy, cell in zip(POLICIES, found["rows"], strict=True):
        seconds = found["policies"][policy]["cpu_seconds"]
        rows.append(
            row(NAME, f"{name}, {policy}", [found["records"] / s / 1e6 for s in seconds],
                "M references/s", goal=">= 20", cores=1,
                note=f"{found['records']:,} references, {found['pages']:,} pages, "
                f"{cell['embedded_faults']:,} embedded page faults; decoding included")
        )  # fmt: skip
    requests = 100_000 if quick else 1_000_000
    # The command `flash` reads no trace.
    flash = inputs.measure("flash", Path("-"), *more, "--requests", str(requests), cores=1)
    seconds = flash["work"]["cpu_seconds"]
    note = f"{flash['collections']:,} collections, WA {flash['write_amplification']:.2f}; {MQSIM}"
    rows += [
        row(NAME, "flash commands", [flash["commands"] / s / 1e6 for s in seconds],
            "M commands/s", goal=">= 2.5", cores=1, note=note),
        row(NAME, "flash requests", [flash["requests"] / s / 1e6 for s in seconds],
            "M requests/s", cores=1, note="two writes per read, at random pages of a full drive"),
    ]  # fmt: skip
    return rows
