"""Major faults that the kernel counts, beside what `--replacement linux` predicts."""

from __future__ import annotations

import os
import random
import shutil
import signal
import statistics
from pathlib import Path

import kernel
from inputs import Inputs
from measure import BenchError, Row, nearfar, row, run

NAME = "kernel-faults"
SUMMARY = "major faults of `sort` under a memory limit with zram, against the prediction"

#: Memory sizes, as parts of the program's anonymous pages.
FRACTIONS = (0.5, 0.6, 0.7, 0.8, 0.9)
#: The policy that is read from the kernel, and others, to see what the comparison can tell apart.
OURS, OTHERS = "linux", ("clock", "lru")
#: Lines of the sorted file; a line is some 120 bytes, and takes 170 bytes of memory.
LINES = 250_000
#: Runs that may be repeated because the kernel, with old statistics, killed the program.
MAX_KILLED = 10


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """One run without a limit, then every size in turn, ``rounds`` times."""
    try:
        where = kernel.controller(Path("/proc/mounts").read_text())
        if not inputs.can_capture:
            raise kernel.Unavailable("there is no QEMU to capture with")
        return compare(inputs, where, rounds, LINES // 10 if quick else LINES)
    except kernel.Unavailable as error:
        inputs.remarks.append(f"{NAME} skipped: {error}")
        return []


def compare(inputs: Inputs, where: kernel.Controller, rounds: int, lines: int) -> list[Row]:
    """Capture, predict, and run it under the real kernel."""
    path = shutil.which("sort")
    if path is None:
        raise kernel.Unavailable("there is no sort")
    text = inputs.scratch / "lines.txt"
    text.write_text(random_lines(lines))
    command = [path, "-S", "400M", "--parallel=1", str(text)]
    group = f"nearfar-bench-{os.getpid()}"
    with kernel.swapping(4 * lines * 250) as lists:
        # Brings the program and its input into the page cache, outside of any limited group.
        kernel.run_limited(where, command, None, group)
        free = kernel.run_limited(where, command, None, group)
        finished(free, command)
        sizes = [int(free.anonymous_pages * part) for part in FRACTIONS]
        measured: dict[int, list[kernel.Finished]] = {size: [] for size in sizes}
        killed = 0
        for _ in range(rounds):
            for size in sizes:
                limit = size * kernel.PAGE + free.kernel_bytes
                ran = kernel.run_limited(where, command, limit, group)
                while ran.exit_code == -signal.SIGKILL and killed < MAX_KILLED:
                    killed += 1
                    ran = kernel.run_limited(where, command, limit, group)
                finished(ran, command)
                measured[size].append(ran)
    capture = inputs.scratch / "sort.trace"
    words = nearfar("capture", "--no-fetch", "--force", "-o", capture, "--", *command)
    run(["env", "LC_ALL=C", *words], discard=True)
    memory = ",".join(str(size * kernel.PAGE) for size in sizes)
    predicted = {policy: predict(capture, policy, memory) for policy in (OURS, *OTHERS)}
    pages = peak(capture)
    most_file = max(ran.file_bytes for runs in measured.values() for ran in runs)
    note = (
        f"{' '.join(command[:-1])}, {lines:,} lines; control group version {where.version}, "
        f"{lists}, swap on zram, vm.page-cluster 0; limit = pages x 4096 + "
        f"{free.kernel_bytes} bytes of the kernel's own; at most {most_file} bytes of files "
        f"charged; {killed} runs killed for lack of memory and repeated"
    )
    rows = [
        row(NAME, "anonymous pages, kernel", [free.anonymous_pages], "pages", note=note),
        row(NAME, "anonymous pages, trace", [pages], "pages"),
    ]
    for part, size in zip(FRACTIONS, sizes, strict=True):
        counted = [ran.major for ran in measured[size]]
        label = f"{part:.0%}, {size} frames"
        rows.append(row(NAME, f"major faults, kernel, {label}", counted, "faults"))
        expected = [predicted[OURS][size]]
        rows.append(row(NAME, f"major faults, predicted, {label}", expected, "faults"))
    note = "of the kernel's count: median, minimum and maximum of the memory sizes"
    for policy, found in predicted.items():
        errors = [
            statistics.median(
                100 * abs(found[size] - ran.major) / max(ran.major, 1) for ran in runs
            )
            for size, runs in measured.items()
        ]
        goal = "<= 10" if policy == OURS else ""
        rows.append(row(NAME, f"error of `{policy}`", errors, "%", goal=goal, note=note))
    return rows


#: Files are in the page cache, charged to the group that read them first.
STUDY = ("--lifetimes", "on", "--page-cache", "elsewhere", "--page-sizes", "4K", "--format", "json")


def predict(trace: Path, policy: str, memory: str) -> dict[int, int]:
    """Pages read back from swap at each number of frames."""
    words = [*STUDY, "--replacement", policy, "--memory", memory]
    if policy == OURS:
        words += ["--swappiness", kernel.SWAPPINESS]
    words += ["--machine", "desktop-nvm", "--storage", "nvm-1x"]
    result = run(nearfar("paging", trace, *words)).json()
    return {each["frames"]: each["swap_ins"] for each in result["rows"]}


def peak(trace: Path) -> int:
    """The most anonymous pages at once."""
    result = run(nearfar("paging", trace, *STUDY, "--memory", "100%")).json()
    return int(result["run"]["peak_resident_bytes"]) // kernel.PAGE


def random_lines(count: int) -> str:
    """Lines of 60 to 180 hexadecimal digits, in no order; the same ones every time."""
    draw = random.Random(1)
    digits = (draw.randint(60, 180) for _ in range(count))
    return "".join(f"{draw.getrandbits(4 * length):0{length}x}\n" for length in digits)


def finished(ran: kernel.Finished, command: list[str]) -> None:
    """Refuse a run that did not end well."""
    if ran.exit_code != 0:
        kill = ran.exit_code == -signal.SIGKILL
        how = "killed, out of memory," if kill else f"ended with {ran.exit_code}"
        raise BenchError(f"{command[0]}: {how} under the memory limit")
