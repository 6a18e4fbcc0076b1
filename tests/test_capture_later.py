"""Recording that begins later than the program or ends earlier, with real programs and QEMU."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import (
    ALONE,
    NEARFAR,
    STORE,
    columns,
    info,
    loop,
    nearfar,
    needs_cc,
    needs_qemu,
    regions,
)
from conftest import HANG, refused, until

#: Maps, writes and unmaps a range; writes `early`, prints the addresses and waits for a line; then
#: writes `late` until the next line.
PHASES = r"""
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#define COUNT 4096
static volatile long early[COUNT], late[COUNT];
int main(void) {
    volatile char *range = mmap(0, 1 << 20, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    range[0] = 1;
    munmap((void *)range, 1 << 20);
    for (int i = 0; i < COUNT; i++) early[i] = i;
    printf("%p %p %p\n", (void *)early, (void *)late, (void *)range); fflush(stdout);
    getchar();
    struct pollfd in = {0, POLLIN, 0};
    do for (int i = 0; i < COUNT; i++) late[i] = i; while (poll(&in, 1, 0) == 0);
    return 0;
}
"""
BYTES = 8 * 4096


def within(addr: int, start: int) -> bool:
    return start <= addr < start + BYTES


@needs_qemu
@needs_cc
def test_a_signal_begins_the_recording(build: Callable[..., Path], tmp_path: Path) -> None:
    trace, program = tmp_path / "late.trace", build(PHASES)
    words = ["--no-fetch", "--start-on", "SIGUSR1", "-o", str(trace), "--", str(program)]
    with subprocess.Popen(
        [*NEARFAR, "capture", *words],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as run:  # fmt: skip
        assert run.stdin and run.stdout and run.stderr
        early, late, gone = (int(word, 16) for word in run.stdout.readline().split())
        line = run.stderr.readline()
        found = re.search(r"recording begins on SIGUSR1: kill -USR1 (\d+)", line)
        assert found and int(found[1]) == run.pid, line
        run.send_signal(signal.SIGUSR1)
        run.stdin.write("\n")
        run.stdin.flush()
        until(lambda: info(trace)["parts"], "a finished part")
        run.stdin.write("\n")
        run.stdin.close()
        assert run.wait(HANG) == 0, run.stderr.read()
    whole = info(trace)
    assert whole["complete"] and "recording began on SIGUSR1" in whole["source"]["detail"]
    stores = [addr for addr, kind, *_ in columns(trace) if kind == STORE]
    assert not any(within(addr, early) for addr in stores)
    assert sum(within(addr, late) for addr in stores) > BYTES / 8
    # Earlier mappings are in the trace: the program's own file, and the range that is unmapped.
    known = regions(trace)
    image = [
        r for r in known if r["event"] == "map" and r["addr"] <= late < r["addr"] + r["length"]
    ]
    assert Path(image[0]["name"]).name == program.name and image[0]["at"] == 0
    events = [r["event"] for r in known if r["addr"] == gone and r["at"] == 0]
    assert events[:2] == ["map", "unmap"]


@needs_qemu
@needs_cc
def test_a_time_ends_the_recording_and_not_the_program(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    program, trace = build(loop(5_000_000), *ALONE, suffix=".s"), tmp_path / "short.trace"
    done = nearfar("--stop-after", "1ms", "-o", trace, "--", program)
    assert done.returncode == 0, done.stderr
    found = info(trace)
    assert found["complete"] and 0 <= found["records"] < 15_000_000
    assert f"recording stopped after {found['records']} records" in found["source"]["detail"]
    done = nearfar("--stop-after", "1234", "-o", trace, "--force", "--", program)
    assert done.returncode == 0 and info(trace)["records"] == 1234
    done = nearfar(
        "--start-after", "0s", "--skip-refs", 10, "--stop-after", 7, "-o", trace, "--force", program
    )
    assert done.returncode == 0 and info(trace)["records"] == 7


@needs_qemu
@needs_cc
def test_a_recording_that_never_began_is_incomplete(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    program, trace = build("int main(void) { return 0; }"), tmp_path / "never.trace"
    done = nearfar("--start-after", "1h", "-o", trace, "--", program)
    why = "the program ended before recording began (1h after the program's start)"
    assert done.returncode == 1 and why in done.stderr
    found = info(trace)
    assert found["records"] == 0 and why in found["incomplete_reason"]
    assert program.name in {Path(r["name"]).name for r in regions(trace)}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--start-after", "30"], "--start-after: '30' is not a time; write for example 30s"),
        (["--start-after", "1us"], "is not a time"),
        (["--start-on", "SIGKILL"], "--start-on"),
        (["--start-on", "SIGUSR1", "--start-after", "1s"], "conflicts with --start-after"),
        (["--stop-after", "0"], "--stop-after: must be 1 or more"),
        (["--stop-after", "10", "--max-refs", "10"], "--stop-after: conflicts with --max-refs"),
    ],
)
def test_bad_options_are_an_error_of_one_line(words: list[str], says: str, tmp_path: Path) -> None:
    refused(nearfar(*words, "-o", tmp_path / "t.trace", "--", "true"), says)
    assert not (tmp_path / "t.trace").exists()
