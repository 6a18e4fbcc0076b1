"""Capture, end to end: real programs under the real QEMU, with counts known in advance."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import (
    ALONE,
    FETCH,
    KERNEL,
    KERNEL_LOAD,
    KERNEL_STORE,
    LOAD,
    NEARFAR,
    STORE,
    aarch64_program,
    columns,
    info,
    loop,
    nearfar,
    needs_cc,
    needs_qemu,
    needs_qemu_arm,
    records,
    regions,
)
from conftest import HANG
from nearfar import capture, declared
from nearfar.info import info as summary


@needs_qemu
@needs_cc
def test_every_record_of_a_known_loop(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(loop(1000), *ALONE, suffix=".s")
    trace = capture.capture([program], tmp_path / "loop.trace")
    rows = columns(trace)
    # The first block is the `mov` before the loop and the first iteration; the last is the exit.
    assert [row[1] for row in rows] == [FETCH, LOAD, STORE] * 1000 + [FETCH]
    assert [row[4] for row in rows] == [0, 2, 1] + [2, 1, 1] * 999 + [2]
    assert {row[2] for row in rows if row[1] != FETCH} == {8}
    top = rows[1][0]
    assert {row[0] for row in rows if row[1] == LOAD} == {top}
    assert {row[0] for row in rows if row[1] == STORE} == {top - 8}
    start, again, last = rows[0], rows[3], rows[-1]
    assert again[0] == start[0] + 5 and last[0] == again[0] + 13
    assert (start[2], again[2], last[2]) == (18, 13, 9)
    found = info(trace)
    assert found["complete"] and found["instructions"] == 1 + 4 * 1000 + 3
    assert found["records_by_kind"] == {"load": 1000, "store": 1000, "fetch": 1001}
    text = [r for r in regions(trace) if r["addr"] <= start[0] < r["addr"] + r["length"]]
    assert [Path(r["name"]) for r in text] == [program.resolve()]
    stack = [r for r in regions(trace) if r["addr"] <= top < r["addr"] + r["length"]]
    assert [r["name"] for r in stack] == ["[stack]"]


@needs_qemu
@needs_cc
def test_no_fetch_keeps_the_instruction_count(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(loop(1000), *ALONE, suffix=".s")
    trace = capture.capture([program], tmp_path / "loop.trace", fetch=False)
    rows = columns(trace)
    assert [row[1] for row in rows] == [LOAD, STORE] * 1000
    assert [row[4] for row in rows] == [2, 1] + [3, 1] * 999
    assert info(trace)["instructions"] == 4004


@needs_qemu
@needs_cc
def test_max_refs_ends_only_the_recording(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(loop(10_000_000), *ALONE, suffix=".s")
    outcome = capture.run([program], tmp_path / "loop.trace", max_refs=12345)
    assert outcome.complete and outcome.exit_code == 0
    assert outcome.info["records"] == records(outcome.path).num_rows == 12345
    assert "recording stopped after 12345 records" in outcome.info["source"]["detail"]
    assert columns(outcome.path)[:3000] == columns(
        capture.capture([program], tmp_path / "again.trace", max_refs=3000)
    )


@needs_qemu
@needs_cc
def test_skip_refs_leaves_out_the_first_records(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(loop(1000), *ALONE, suffix=".s")
    whole = capture.run([program], tmp_path / "whole.trace")
    rest = capture.run([program], tmp_path / "rest.trace", skip_refs=1234)
    assert columns(rest.path) == columns(whole.path)[1234:]
    assert "recording began after 1234 records" in rest.info["source"]["detail"]
    mapped = [{**event, "at": 0} for event in regions(whole.path)]
    assert [{**event, "at": 0} for event in regions(rest.path)] == mapped
    some = capture.run([program], tmp_path / "some.trace", skip_refs=70, max_refs=100)
    assert columns(some.path) == columns(whole.path)[70:170]
    none = capture.run([program], tmp_path / "none.trace", skip_refs=10**9)
    assert none.info["records"] == 0 and "nothing is recorded" in none.warnings[0]


THREADS = r"""
#include <pthread.h>
#include <stdio.h>
static long cells[64][64];
static void *work(void *p) {
    long *cell = p, turns = 1000 * (1 + (cell - cells[0]) / 64);
    for (long i = 0; i < turns; i++) (void)*(volatile long *)cell;
    return 0;
}
int main(int argc, char **argv) {
    pthread_t t[64];
    int n = 8, together = argc > 1;
    printf("%p\n", (void *)cells); fflush(stdout);
    for (int i = 0; i < n; i++) {
        pthread_create(&t[i], 0, work, cells[i]);
        if (!together) pthread_join(t[i], 0);
    }
    for (int i = 0; together && i < n; i++) pthread_join(t[i], 0);
    return 0;
}
"""


@needs_qemu
@needs_cc
@pytest.mark.parametrize("together", [False, True])
def test_threads_are_recorded(build: Callable[..., Path], tmp_path: Path, together: bool) -> None:
    program = build(THREADS, "-pthread")
    trace = tmp_path / "threads.trace"
    done = nearfar("-o", trace, "--", program, *["together"] * together)
    assert done.returncode == 0, done.stderr
    cells = int(done.stdout, 16)
    seen: Counter[tuple[int, int]] = Counter()
    gaps: Counter[int] = Counter()
    for addr, kind, _, thread, instr in columns(trace):
        gaps[thread] += instr
        if kind == LOAD and cells <= addr < cells + 8 * 512:
            seen[thread, (addr - cells) // 512] += 1
    # Each thread has its own index, even if QEMU reuses its thread numbers.
    assert seen == {(i + 1, i): 1000 * (i + 1) for i in range(8)}
    threads = info(trace)["threads"]
    assert [t["index"] for t in threads] == list(range(9))
    assert {t["process"] for t in threads} == {1}
    for thread in threads:
        assert 0 <= thread["instructions"] - gaps[thread["index"]] < 600
    events = Counter(r["event"] for r in regions(trace))
    assert events["thread-start"] == events["thread-exit"] == 9


FORK = r"""
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile long cells[2];
int main(void) {
    printf("%p\n", (void *)cells); fflush(stdout);
    for (int i = 0; i < 100; i++) (void)cells[0];
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 500000; i++) (void)cells[1];
        _exit(7);
    }
    int status;
    waitpid(child, &status, 0);
    for (int i = 0; i < 50; i++) (void)cells[0];
    return WEXITSTATUS(status);
}
"""


@needs_qemu
@needs_cc
@pytest.mark.parametrize("follow", [False, True])
def test_a_forked_child_is_recorded_only_with_follow_forks(
    build: Callable[..., Path], tmp_path: Path, follow: bool
) -> None:
    trace = tmp_path / "fork.trace"
    done = nearfar("-o", trace, *["--follow-forks"] * follow, "--", build(FORK))
    assert done.returncode == 0, done.stderr
    assert "exited with status 7" in done.stderr
    cells = int(done.stdout, 16)
    seen = Counter((row[3], row[0]) for row in columns(trace) if row[0] in (cells, cells + 8))
    found = info(trace)
    assert found["complete"]
    if follow:
        assert seen == {(0, cells): 150, (1, cells + 8): 500000}
        assert [t["process"] for t in found["threads"]] == [1, 2]
        assert [r["event"] for r in regions(trace)].count("fork") == 1
    else:
        assert seen == {(0, cells): 150}
        assert "1 child process ran unrecorded; --follow-forks" in done.stderr


@needs_qemu
def test_exec_is_followed(tmp_path: Path) -> None:
    trace = tmp_path / "sh.trace"
    done = nearfar("-o", trace, "--", "/bin/sh", "-c", "exec /bin/echo one two")
    assert (done.returncode, done.stdout) == (0, "one two\n"), done.stderr
    events = [(r["event"], r["name"]) for r in regions(trace)]
    assert ("exec", "/bin/echo") in events
    assert any(e == "map" and Path(n).name == "echo" for e, n in events)
    threads = info(trace)["threads"]
    assert [t["process"] for t in threads] == [1, 1]
    assert all(t["records"] > 1000 for t in threads)


@needs_qemu
def test_script_children_are_followed(tmp_path: Path) -> None:
    script = tmp_path / "two words.sh"
    script.write_text('#!/bin/sh\n/bin/echo "$0" "$1"\ncat "$0" | wc -l\n/no/such 2>/dev/null\n:\n')
    script.chmod(0o755)
    trace = tmp_path / "sh.trace"
    done = nearfar("-o", trace, "--follow-forks", "--", script, "x y")
    assert (done.returncode, done.stdout) == (0, f"{script} x y\n5\n"), done.stderr
    names = {Path(r["name"]).name for r in regions(trace) if r["event"] == "exec"}
    assert names == {"echo", "cat", "wc"}
    found = info(trace)
    assert found["complete"] and len({t["process"] for t in found["threads"]}) >= 4


READER = """
.globl _start
_start:
    mov 24(%rsp), %rdi      # argv[2]
    mov $2, %eax
    mov $2, %esi
    syscall                 # open(path, O_RDWR)
    mov %eax, %r12d
    mov %r12d, %edi
    lea buffer+100(%rip), %rsi
    mov $10000, %edx
    xor %eax, %eax
    syscall                 # read 10000 bytes
    mov %r12d, %edi
    lea vector(%rip), %rsi
    mov $2, %edx
    mov $6000, %r10d
    xor %r8d, %r8d
    mov $296, %eax
    syscall                 # pwritev two pieces to offset 6000
    mov $60, %eax
    xor %edi, %edi
    syscall
    .data
vector: .quad buffer+4096, 1000, buffer+8192, 2000
    .bss
    .balign 4096
    .globl buffer
buffer: .space 65536
"""


@needs_qemu
@needs_cc
def test_file_io_is_recorded_in_the_page_cache(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(READER, *ALONE, suffix=".s")
    data = tmp_path / "data"
    data.write_bytes(bytes(20000))
    trace = capture.capture([program, "x", data], tmp_path / "reader.trace")
    files = [r for r in regions(trace) if r["event"] == "file"]
    assert [r["name"] for r in files] == [str(data)]
    base = files[0]["addr"]
    assert base >= KERNEL
    rows = [row for row in columns(trace) if row[1] in (KERNEL_LOAD, KERNEL_STORE)]
    user = [row[0] for row in rows if row[0] < KERNEL]
    buffer = user[0] - 100
    assert buffer % 4096 == 0
    assert [row[:3] for row in rows] == [
        # read(fd, buffer + 100, 10000): each page of the file, then the destination
        (base, KERNEL_LOAD, 4096),
        (buffer + 100, KERNEL_STORE, 3996),
        (buffer + 4096, KERNEL_STORE, 100),
        (base + 4096, KERNEL_LOAD, 4096),
        (buffer + 4196, KERNEL_STORE, 3996),
        (buffer + 8192, KERNEL_STORE, 100),
        (base + 8192, KERNEL_LOAD, 1808),
        (buffer + 8292, KERNEL_STORE, 1808),
        # pwritev at 6000: the source, then each page of the file
        (buffer + 4096, KERNEL_LOAD, 1000),
        (buffer + 8192, KERNEL_LOAD, 1192),
        (base + 6000, KERNEL_STORE, 2192),
        (buffer + 9384, KERNEL_LOAD, 808),
        (base + 8192, KERNEL_STORE, 808),
    ]


@needs_qemu_arm
def test_every_record_of_a_known_aarch64_loop(tmp_path: Path) -> None:
    program = tmp_path / "arm"
    program.write_bytes(aarch64_program())
    program.chmod(0o755)
    outcome = capture.run([program], tmp_path / "arm.trace")
    assert outcome.exit_code == 5 and outcome.complete
    assert outcome.info["source"]["arch"] == "aarch64"
    rows = columns(outcome.path)
    assert [row[1] for row in rows] == [FETCH, LOAD, STORE] * 100 + [FETCH]
    assert [row[4] for row in rows] == [0, 2, 1] + [2, 1, 1] * 99 + [2]
    assert outcome.info["instructions"] == 1 + 4 * 100 + 3
    assert rows[0][0] == 0x400078 and rows[0][2] == 20


@needs_qemu
def test_a_real_program_keeps_its_streams_and_has_every_kind_of_record(tmp_path: Path) -> None:
    text = b"what is near and what is far\n" * 5000
    trace = tmp_path / "gzip.trace"
    packed = subprocess.run(["gzip", "-c"], input=text, capture_output=True, check=True).stdout
    done = subprocess.run(
        [*NEARFAR, "capture", "-o", trace, "--", "gzip", "-dc"],
        input=packed,
        capture_output=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == text
    found = info(trace)
    assert found["records"] == records(trace).num_rows > 100_000
    # Only traces of virtual machines have kernel-fetch.
    kinds = set(dict(declared.names.KIND)) - {"kernel-fetch"}
    assert set(found["records_by_kind"]) == kinds
    kinds = Counter(records(trace)["kind"].to_pylist())
    assert sum(kinds.values()) == sum(found["records_by_kind"].values())
    table = records(trace)
    assert sum(table["instr"].to_pylist()) <= found["instructions"]
    names = {Path(r["name"]).name for r in regions(trace)}
    assert {"gzip", "[stack]", "[heap]"} <= names
    clock = json.loads((trace / "trace.json").read_text())["clock"]
    assert clock["records"][-1] == found["records"]
    heat = summary(trace)["heatmap"]
    seconds = heat["seconds"]
    assert len(seconds) == heat["time_bins"] + 1 and seconds == sorted(seconds)
    assert seconds[0] == 0 < seconds[-1] == clock["milliseconds"][-1] / 1000
