"""Capture, end to end: real programs under the real QEMU, with counts known in advance."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import HANG, until
from nearfar import capture
from nearfar.errors import NearfarError

LOAD, STORE, FETCH = "load", "store", "fetch"
KERNEL_LOAD, KERNEL_STORE = "kernel-load", "kernel-store"
KERNEL = 1 << 63
NEARFAR = [sys.executable, "-c", "from nearfar.cli import main; main()"]

needs_qemu = pytest.mark.skipif(
    shutil.which("qemu-x86_64") is None, reason="qemu-user is not installed"
)
needs_qemu_arm = pytest.mark.skipif(
    shutil.which("qemu-aarch64") is None, reason="qemu-user is not installed"
)
needs_cc = pytest.mark.skipif(
    shutil.which("cc") is None or os.uname().machine != "x86_64", reason="no x86-64 C compiler"
)


def records(trace: Path) -> pa.Table:
    """All finished parts, in order."""
    parts = sorted(trace.glob("part-*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts])


def columns(trace: Path) -> list[tuple[Any, ...]]:
    table = records(trace)
    names = ["addr", "kind", "size", "thread", "instr"]
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def regions(trace: Path) -> list[dict[str, Any]]:
    return pq.read_table(trace / "regions.parquet").to_pylist()


def info(trace: Path) -> dict[str, Any]:
    import json

    return json.loads((trace / "trace.json").read_text())


def nearfar(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*NEARFAR, "capture", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        **more,
    )


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile a C or assembly text once."""
    folder = tmp_path_factory.mktemp("programs")
    made: dict[tuple[str, ...], Path] = {}

    def compile_(text: str, *flags: str, suffix: str = ".c") -> Path:
        key = (text, *flags)
        if key not in made:
            source = folder / f"p{len(made)}{suffix}"
            source.write_text(text)
            program = source.with_suffix("")
            subprocess.run(["cc", "-O1", *flags, "-o", program, source], check=True)
            made[key] = program
        return made[key]

    return compile_


LOOP = """
.globl _start
_start:
    mov $1000, %ecx
1:  mov (%rsp), %rax
    mov %rax, -8(%rsp)
    dec %ecx
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
"""
ALONE = ("-nostdlib", "-static", "-no-pie")


@needs_qemu
@needs_cc
def test_every_record_of_a_known_loop(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(LOOP, *ALONE, suffix=".s")
    trace = capture.capture([program], tmp_path / "loop.trace")
    rows = columns(trace)
    # The first block holds the first `mov` and the loop's first turn, the last one the exit.
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
    program = build(LOOP, *ALONE, suffix=".s")
    trace = capture.capture([program], tmp_path / "loop.trace", fetch=False)
    rows = columns(trace)
    assert [row[1] for row in rows] == [LOAD, STORE] * 1000
    assert [row[4] for row in rows] == [2, 1] + [3, 1] * 999
    assert info(trace)["instructions"] == 4004


@needs_qemu
@needs_cc
def test_max_refs(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(LOOP.replace("$1000", "$10000000"), *ALONE, suffix=".s")
    outcome = capture.run([program], tmp_path / "loop.trace", max_refs=12345)
    assert outcome.complete and outcome.exit_code == 0
    assert outcome.info["records"] == records(outcome.path).num_rows == 12345
    assert "recording stopped after 12345 records" in outcome.info["source"]["detail"]
    assert columns(outcome.path)[:3000] == columns(
        capture.capture([program], tmp_path / "again.trace", max_refs=3000)
    )


@needs_qemu
@needs_cc
def test_skip_refs(build: Callable[..., Path], tmp_path: Path) -> None:
    program = build(LOOP, *ALONE, suffix=".s")
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
def test_threads(build: Callable[..., Path], tmp_path: Path, together: bool) -> None:
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
    # Each thread has its own index, even where QEMU used a number again.
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
def test_fork(build: Callable[..., Path], tmp_path: Path, follow: bool) -> None:
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
    syscall                 # read 10000 of them
    mov %r12d, %edi
    lea vector(%rip), %rsi
    mov $2, %edx
    mov $6000, %r10d
    xor %r8d, %r8d
    mov $296, %eax
    syscall                 # pwritev two pieces at 6000
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
def test_page_cache(build: Callable[..., Path], tmp_path: Path) -> None:
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
        # read(fd, buffer + 100, 10000): a page of the file, then where it was copied to
        (base, KERNEL_LOAD, 4096),
        (buffer + 100, KERNEL_STORE, 3996),
        (buffer + 4096, KERNEL_STORE, 100),
        (base + 4096, KERNEL_LOAD, 4096),
        (buffer + 4196, KERNEL_STORE, 3996),
        (buffer + 8192, KERNEL_STORE, 100),
        (base + 8192, KERNEL_LOAD, 1808),
        (buffer + 8292, KERNEL_STORE, 1808),
        # pwritev at 6000: what is copied, then the page of the file
        (buffer + 4096, KERNEL_LOAD, 1000),
        (buffer + 8192, KERNEL_LOAD, 1192),
        (base + 6000, KERNEL_STORE, 2192),
        (buffer + 9384, KERNEL_LOAD, 808),
        (base + 8192, KERNEL_STORE, 808),
    ]


def aarch64_program() -> bytes:
    """A static ELF: 100 turns of ldr, str, subs, b.ne, then exit(5)."""
    code = struct.pack(
        "<9I",
        0xD2800C80,  # mov x0, #100
        0xF94003E1,  # ldr x1, [sp]
        0xF81F03E1,  # stur x1, [sp, #-16]
        0xF1000400,  # subs x0, x0, #1
        0x54FFFFA1,  # b.ne -12
        0xD2800BA8,  # mov x8, #93
        0xD28000A0,  # mov x0, #5
        0xD4000001,  # svc #0
        0xD503201F,  # nop
    )
    base = 0x400000
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 2, 183, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = 120 + len(code)
    return head + struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 4096) + code


@needs_qemu_arm
def test_aarch64(tmp_path: Path) -> None:
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
def test_gzip_and_streams(tmp_path: Path) -> None:
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
    assert set(found["records_by_kind"]) == {
        "load", "store", "fetch", "kernel-load", "kernel-store",
    }  # fmt: skip
    kinds = Counter(records(trace)["kind"].to_pylist())
    assert sum(kinds.values()) == sum(found["records_by_kind"].values())
    table = records(trace)
    assert sum(table["instr"].to_pylist()) <= found["instructions"]
    names = {Path(r["name"]).name for r in regions(trace)}
    assert {"gzip", "[stack]", "[heap]"} <= names


CRASH = r"""
int main(void) {
    static volatile long cell;
    for (int i = 0; i < 1000; i++) (void)cell;
    *(volatile int *)8 = 1;
}
"""


@needs_qemu
@needs_cc
def test_crash(build: Callable[..., Path], tmp_path: Path) -> None:
    trace = tmp_path / "crash.trace"
    done = nearfar("-o", trace, "--", build(CRASH))
    assert done.returncode == 1
    assert "program killed by signal 11" in done.stderr
    found = info(trace)
    assert not found["complete"]
    assert found["incomplete_reason"] == "program killed by signal 11"
    assert found["records"] == records(trace).num_rows > 1000


FOREVER = r"""
#include <stdio.h>
#include <unistd.h>
static volatile long cell;
int main(void) {
    printf("%d\n", (int)getpid()); fflush(stdout);
    for (;;) for (int i = 0; i < 1000; i++) (void)cell;
}
"""


class Running:
    """A capture of a program that never ends; `program` is its process."""

    def __init__(
        self, trace: Path, program: Path, part: bool = True, words: Sequence[str] = ()
    ) -> None:
        self.trace = trace
        self.capture = subprocess.Popen(
            [*NEARFAR, "capture", *words, "-o", str(trace), "--", str(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.capture.stdout is not None
        self.program = int(self.capture.stdout.readline())
        # Wait for a finished part, so that there is something to keep. It is one once it is listed.
        if part:
            until(lambda: info(trace)["parts"], "a finished part")

    def program_is_alive(self) -> bool:
        try:
            stat = Path(f"/proc/{self.program}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rsplit(") ", 1)[1][0] not in "ZX"


@needs_qemu
@needs_cc
@pytest.mark.parametrize("whom", ["group", "capture"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(
    build: Callable[..., Path], tmp_path: Path, whom: str, number: signal.Signals
) -> None:
    run = Running(tmp_path / "ever.trace", build(FOREVER))
    if whom == "group":
        os.killpg(run.capture.pid, number)
    else:
        run.capture.send_signal(number)
    _, stderr = run.capture.communicate(timeout=HANG)
    assert run.capture.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert not run.program_is_alive()
    found = info(run.trace)
    assert not found["complete"] and found["incomplete_reason"] == "interrupted"
    assert found["records"] == records(run.trace).num_rows > 0


@needs_qemu
@needs_cc
def test_program_killed(build: Callable[..., Path], tmp_path: Path) -> None:
    run = Running(tmp_path / "ever.trace", build(FOREVER), part=False)
    time.sleep(0.3)
    os.kill(run.program, signal.SIGKILL)
    _, stderr = run.capture.communicate(timeout=HANG)
    assert run.capture.returncode == 1, stderr
    found = info(run.trace)
    assert found["incomplete_reason"] == "program killed by signal 9"
    assert found["records"] == records(run.trace).num_rows > 0


@needs_qemu
@needs_cc
def test_capture_killed(build: Callable[..., Path], tmp_path: Path) -> None:
    """The program ends with it: nobody would record it any more."""
    run = Running(tmp_path / "ever.trace", build(FOREVER))
    run.capture.kill()
    run.capture.wait(timeout=HANG)
    try:
        until(lambda: not run.program_is_alive(), "the end of the program")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(run.program, signal.SIGKILL)
    found = info(run.trace)
    assert not found["complete"]
    assert found["records"] == sum(
        pq.read_metadata(run.trace / part["file"]).num_rows for part in found["parts"]
    )
    assert found["records"] > 0


@needs_qemu
@needs_cc
def test_a_trace_stays_until_there_is_one_to_replace_it(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    """A program that cannot be started, and a kill before the first part, lose no earlier trace."""
    trace = tmp_path / "ever.trace"
    done = nearfar("-o", trace, "--", "/bin/true")
    assert done.returncode == 0, done.stderr
    before = info(trace)
    broken = tmp_path / "broken"
    broken.write_bytes(Path("/bin/true").read_bytes()[:200])
    broken.chmod(0o755)
    done = nearfar("--force", "-o", trace, "--", broken)
    assert done.returncode == 2, done.stderr
    assert info(trace) == before and records(trace).num_rows == before["records"]
    kept = tmp_path / ".ever.trace.replaced"
    assert not kept.exists()
    run = Running(trace, build(FOREVER), part=False, words=["--force", "--max-refs", "1000"])
    run.capture.kill()
    run.capture.wait(timeout=HANG)
    assert info(trace)["records"] == 0 and not info(trace)["complete"]
    assert info(kept) == before
    done = nearfar("--force", "-o", trace, "--", "/bin/true")
    assert done.returncode == 0 and info(trace)["complete"]
    assert [path.name for path in tmp_path.glob(".*")] == []


@needs_qemu
@needs_cc
def test_full_disk(build: Callable[..., Path], tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("may not mount a small file system")
    try:
        subprocess.run(["dd", "if=/dev/zero", f"of={small}/fill", "bs=1k", "count=960"],
                       capture_output=True, check=True)  # fmt: skip
        trace = small / "ever.trace"
        done = nearfar("-o", trace, "--", build(FOREVER))
        assert done.returncode == 2
        errors = [line for line in done.stderr.splitlines() if "error:" in line]
        assert len(errors) == 1 and str(trace) in errors[0] and "free some space" in errors[0]
        assert not Running.program_is_alive(_Program(int(done.stdout)))  # type: ignore[arg-type]
    finally:
        subprocess.run(["umount", small], check=True)


class _Program:
    def __init__(self, program: int) -> None:
        self.program = program


def elf(machine: int, bits: int = 2, order: int = 1, kind: int = 2) -> bytes:
    head = b"\x7fELF" + bytes([bits, order, 1]) + bytes(9)
    return head + struct.pack("<HH" if order == 1 else ">HH", kind, machine) + bytes(100)


BAD_PROGRAMS = [
    (elf(243), "riscv64: it would need qemu-riscv64"),
    (elf(40, bits=1), "arm: it would need qemu-arm"),
    (elf(3, bits=1), "i386: it would need qemu-i386"),
    (elf(183, order=2), "aarch64_be: it would need qemu-aarch64_be"),
    (elf(9999), "ELF machine 9999"),
    (elf(62, kind=1), "not a program (object file"),
    (b"hello", "neither an ELF program nor a `#!` script"),
    (b"", "neither an ELF program nor a `#!` script"),
    (b"\x7fELF\x02\x01", "neither an ELF program"),
    (b"#!/no/such/interpreter\n", "interpreter /no/such/interpreter cannot be run"),
    (b"#!\n", "interpreter  cannot be run"),
]


@pytest.mark.parametrize(("content", "message"), BAD_PROGRAMS)
def test_bad_program(tmp_path: Path, content: bytes, message: str) -> None:
    program = tmp_path / "program"
    program.write_bytes(content)
    program.chmod(0o755)
    with pytest.raises(NearfarError) as raised:
        capture.capture([program], tmp_path / "x.trace")
    assert raised.value.exit_code == 2
    assert message in str(raised.value) and str(program) in str(raised.value)
    assert not (tmp_path / "x.trace").exists()


def test_missing_program(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_bytes(elf(62))
    for command, message in [
        (["no-such-program"], "no such program in PATH"),
        ([str(tmp_path / "none")], "cannot be run"),
        ([str(tmp_path)], "is not a program"),
        ([str(plain)], "is not executable"),
    ]:
        done = nearfar("-o", tmp_path / "x.trace", "--", *command)
        assert done.returncode == 2 and message in done.stderr
        assert done.stderr.count("\n") == 1 and command[0] in done.stderr
    assert not (tmp_path / "x.trace").exists()
    with pytest.raises(NearfarError):
        capture.capture([])


@needs_qemu
def test_options_that_do_not_fit(tmp_path: Path) -> None:
    true = shutil.which("true")
    done = nearfar("--arch", "aarch64", "-o", tmp_path / "x.trace", "--", true)
    if os.uname().machine == "x86_64":
        assert done.returncode == 2 and "is a program for x86_64, not aarch64" in done.stderr
    assert nearfar("--max-refs", "0", "--", true).returncode == 2
    trace = capture.capture([true], tmp_path / "x.trace")
    done = nearfar("-o", trace, "--", true)
    assert done.returncode == 2 and "exists already" in done.stderr
    assert nearfar("--force", "-o", trace, "--", true).returncode == 0


def test_missing_qemu(tmp_path: Path) -> None:
    program = tmp_path / "arm"
    program.write_bytes(aarch64_program())
    program.chmod(0o755)
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = nearfar("-o", tmp_path / "x.trace", "--", program, env=environment)
    assert done.returncode == 3
    assert "apt-get install qemu-user" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "x.trace").exists()


def test_missing_loader(tmp_path: Path) -> None:
    name = b"/no/such/ld.so\0"
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 183, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    head += struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(name), len(name), 1)
    program = tmp_path / "arm"
    program.write_bytes(head + name)
    program.chmod(0o755)
    with pytest.raises(NearfarError, match="loader /no/such/ld.so is not there") as raised:
        capture.capture([program], tmp_path / "x.trace")
    assert raised.value.exit_code == 3


def test_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = {probe.name: probe for probe in capture.probe()}
    assert set(found) == {"qemu-x86_64", "qemu-aarch64", "capture plugin", "shared memory"}
    assert found["capture plugin"].available and found["shared memory"].available
    if shutil.which("qemu-x86_64"):
        assert found["qemu-x86_64"].available, found["qemu-x86_64"]
        assert "accepts the plugin" in found["qemu-x86_64"].why
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(capture, "PLUGIN", tmp_path / "none.so")
    found = {probe.name: probe for probe in capture.probe()}
    assert not found["qemu-x86_64"].available and "apt-get" in found["qemu-x86_64"].fix
    assert not found["capture plugin"].available and found["capture plugin"].fix == "make plugin"


@needs_qemu
def test_a_program_that_closes_every_descriptor(tmp_path: Path) -> None:
    trace = tmp_path / "sh.trace"
    done = nearfar("-o", trace, "--", "/bin/sh", "-c", "exec 3<&- 4<&- 5<&- 6<&-; ls /proc/self/fd")
    assert done.returncode == 0, done.stderr
    # 0 to 2, and the folder that ls has open: nothing of ours.
    assert done.stdout.split() == ["0", "1", "2", "3"]
    assert info(trace)["complete"]
