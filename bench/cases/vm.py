"""Captures of virtual machines: time, size, and references compared with a capture without a VM."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from inputs import Inputs
from measure import BenchError, Row, capture, nearfar, ratios, row, run
from table import figures

from nearfar.guest import Guest, Hardware, Node

NAME = "vm"
SUMMARY = "virtual machines: time against QEMU alone, bytes of a reference, programs' references"

#: Programs of the host that run in the guest on a file of numbers.
PROGRAMS = {
    "gzip": ["gzip", "-dc", "numbers.gz"],
    # -S, because the default size of its buffers depends on the machine's memory.
    "sort": ["sort", "--parallel=1", "-S", "64M", "-n", "numbers"],
    "sha256sum": ["sha256sum", "numbers"],
}
#: Lines of the file.
NUMBERS, QUICK_NUMBERS = 1_000_000, 100_000
#: Bytes of memory of the guest.
MEMORY = 1 << 30
#: Runs a command in the guest and prints the seconds since boot before and after.
TIMED = "read a _ </proc/uptime; {}; read b _ </proc/uptime; echo took $a $b"


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Run each program in a guest without and with capture, and capture it outside a guest."""
    if shutil.which("qemu-system-x86_64") is None or os.uname().machine != "x86_64":
        inputs.remarks.append(f"{NAME} skipped: no qemu-system-x86_64")
        return []
    numbers = inputs.scratch / "numbers"
    count = QUICK_NUMBERS if quick else NUMBERS
    lines = (str(i * 2654435761 % count) for i in range(count))
    numbers.write_text("\n".join(lines) + "\n")
    run(["gzip", "-kf", numbers])
    rows, boots = [], []
    for name, words in PROGRAMS.items():
        files = dict(libraries(words[0])) | {
            f"/work/{file.name}": file for file in (numbers, numbers.with_suffix(".gz"))
        }
        alone, boot, captured, record_bytes, user_references = [], [], [], [], []
        for _ in range(rounds):
            print(f"bench: {NAME}: {name}", file=sys.stderr)
            # The full path, because the guest's busybox has commands of the same names.
            job = f"/usr/local/bin/{' '.join(words)} >/dev/null"
            command = ["sh", "-c", TIMED.format(job)]
            plain = guest_alone(command, files)
            trace = inputs.scratch / "vm.trace"
            put = ",".join(f"{source}={place}" for place, source in files.items())
            options = ["--vm-image", "debian", "--arch", "x86_64", "--memory", str(MEMORY)]
            options += ["--put", put, "--force", "-o", str(trace)]
            done = run(nearfar("capture", *options, "--", *command))
            guest = times(done.output)
            info = json.loads((trace / "trace.json").read_text())
            boot.append((guest[0], plain[0]))
            alone.append(plain[1] - plain[0])
            captured.append(guest[1] - guest[0])
            kinds = info["records_by_kind"]
            user_references.append(kinds["load"] + kinds["store"])
            record_bytes.append(sum(part["bytes"] for part in info["parts"]) / info["records"])
            kernel = sum(count for kind, count in kinds.items() if kind.startswith("kernel"))
        boots += boot
        outside = references(inputs, numbers.parent, words)
        share = f"{kernel / info['records']:.0%} of {info['records']:,} references are the kernel's"
        rows += [
            row(NAME, f"{name}: recorded / QEMU alone", ratios(captured, alone), "x", goal="<= 12",
                note=share),
            row(NAME, f"{name}: bytes of a reference", record_bytes, "B", goal="<= 1"),
            row(NAME, f"{name}: loads and stores / those captured outside the guest",
                [count / outside for count in user_references], "",
                note=f"{outside:,} outside the guest"),
        ]  # fmt: skip
    ours, theirs = zip(*boots, strict=True)
    rows.append(
        row(NAME, "boot, with the plugin / without", ratios(ours, theirs), "x", goal="<= 1.1")
    )
    return rows


def guest_alone(command: list[str], files: dict[str, Path]) -> tuple[float, float]:
    """Run the command in the same guest without the plugin; return its :func:`times`."""
    guest = Guest("x86_64", Hardware((Node(MEMORY, 1),)))
    return times(guest.run(command, files=files).output.decode())


def times(output: str) -> tuple[float, float]:
    """The times that :data:`TIMED` prints: seconds since boot, before and after the command."""
    found = re.search(r"took ([\d.]+) ([\d.]+)", output)
    if found is None:
        raise BenchError(f"{NAME}: the guest printed no time: {output[-200:]}")
    return float(found[1]), float(found[2])


def libraries(program: str) -> Iterator[tuple[str, Path]]:
    """A program of the host and its libraries, by their path in the guest."""
    path = shutil.which(program)
    if path is None:
        raise BenchError(f"{NAME}: no {program}; install it")
    yield f"/usr/local/bin/{program}", Path(path).resolve()
    listed = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    for library in re.findall(r"(/\S+) \(0x", listed):
        yield library, Path(library).resolve()


def references(inputs: Inputs, folder: Path, words: list[str]) -> int:
    """Loads and stores in a capture of the program outside the guest, on the same CPU model."""
    trace = inputs.scratch / "program.trace"
    environment = {"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"], "QEMU_CPU": "max"}
    command = f"cd {folder}; exec {' '.join(words)} >/dev/null"
    capture(["sh", "-c", command], trace, environment)
    kinds = json.loads((trace / "trace.json").read_text())["records_by_kind"]
    return int(kinds["load"] + kinds["store"])


#: Tables of docs/validation.md, by name.
TABLES = {"figures": figures(NAME)}
