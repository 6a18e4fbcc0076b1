"""Speed of a capture against bare QEMU, the program alone, and Valgrind's Lackey."""

from __future__ import annotations

import shutil
import statistics

from inputs import QEMU, Inputs, info
from measure import BenchError, Finished, Row, nearfar, ratios, row, run

NAME = "capture"
SUMMARY = "`nearfar capture -- gzip -dc` against bare QEMU and against Lackey; size of the trace"

#: Lackey runs on one 40th of ``Inputs.text_bytes``, because it takes minutes for what QEMU does in
#: a second.
LACKEY_PART = 40
#: Captured text, as a multiple of ``Inputs.text_bytes``, so that Python's start-up takes a small
#: part of the time.
TEXT_FACTOR = 6
#: Shares of the pages to sample, and the goal of the time as a multiple of bare QEMU's.
SAMPLES = {"1%": "<= 2.5", "0.1%": "<= 1.8"}


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Time whole processes in turn, file writes included."""
    if not inputs.can_capture:
        return []
    text = inputs.text_bytes * (1 if quick else TEXT_FACTOR)
    command = inputs.command(text)
    alone, bare, captured, of_true = [], [], [], []
    sampled: dict[str, list[float]] = {share: [] for share in SAMPLES}
    sampled_bytes = dict.fromkeys(SAMPLES, 0)
    whole = inputs.scratch / "whole.trace"
    done: Finished | None = None
    for _ in range(rounds):
        alone.append(run(command, discard=True).seconds)
        bare.append(run([QEMU, *command], discard=True).seconds)
        done = inputs.capture(text, whole)
        captured.append(done.seconds)
        for share, seconds in sampled.items():
            part = inputs.scratch / "sample.trace"
            seconds.append(inputs.capture(text, part, "--sample", share).seconds)
            sampled_bytes[share] = sum(one["bytes"] for one in info(part)["parts"])
        trace = inputs.scratch / "true.trace"
        words = nearfar("capture", "--force", "-o", trace, "--", "true")
        of_true.append(run(words, discard=True).seconds)
    assert done is not None
    found = info(whole)
    records = found["records"]
    size = sum(part["bytes"] for part in found["parts"])
    note = f"{records:,} records; whole processes, files written"
    rows = [
        row(NAME, "capture / bare QEMU", ratios(captured, bare), "x", goal="<= 6", note=note),
        row(NAME, "capture / program alone", ratios(captured, alone), "x"),
        row(NAME, "bare QEMU", bare, "s"),
        row(NAME, "capture", captured, "s"),
        row(NAME, "capture of `true`", of_true, "s", note="start-up alone, in every capture"),
        row(NAME, "capture rate", [records / s / 1e6 for s in captured], "M records/s"),
        row(NAME, "size of the trace", [size / records], "bytes/record", goal="<= 1"),
        row(
            NAME, "peak memory, capture", [done.peak_bytes / 2**20], "MiB",
            note="largest of its processes",
        ),
    ]  # fmt: skip
    for share, goal in SAMPLES.items():
        name = f"capture --sample {share}"
        rows.append(row(NAME, f"{name} / bare QEMU", ratios(sampled[share], bare), "x", goal=goal))
        part = sampled_bytes[share] / size
        rows.append(row(NAME, f"{name}: size / whole trace", [part], "x", goal="<= 0.01"))
    if shutil.which("valgrind") is None:
        inputs.remarks.append("valgrind is not there: no comparison with Lackey")
        return rows
    return rows + lackey(inputs, text, found, statistics.median(captured))


def lackey(inputs: Inputs, text: int, found: dict, captured: float) -> list[Row]:
    """Rows of one run of Lackey on a part of the text; ``captured`` is the capture's seconds."""
    log = inputs.scratch / "lackey.log"
    part = max(inputs.text_bytes // LACKEY_PART, 1000)
    options = ["--tool=lackey", "--trace-mem=yes", f"--log-file={log}"]
    done = run(["valgrind", *options, *inputs.command(part)], discard=True)
    instructions, data = 0, 0
    with log.open("rb") as lines:
        for line in lines:
            start = line[:2]
            instructions += start == b"I "
            # A modify is a load and a store.
            data += {b" L": 1, b" S": 1, b" M": 2}.get(start, 0)
    log.unlink()
    if not data:
        raise BenchError("valgrind: its Lackey wrote no references")
    kinds = found["records_by_kind"]
    ours = captured / (kinds["load"] + kinds["store"])
    note = (
        f"one run on 1/{text / part:.0f} of the text: {data:,} data references in "
        f"{done.seconds:.1f} s, start-up included"
    )
    per_instruction = (done.seconds / instructions) / (captured / found["instructions"])
    return [
        row(
            NAME, "Lackey / capture, a data reference", [done.seconds / data / ours], "x", note=note
        ),
        row(NAME, "Lackey / capture, an instruction", [per_instruction], "x"),
    ]
