"""Captures that are interrupted, killed or out of disk: what is finished stays."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from capturing import (
    NEARFAR,
    info,
    nearfar,
    needs_cc,
    needs_qemu,
    records,
)
from conftest import HANG, until

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


SAVES = r"""
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static volatile sig_atomic_t signals;
static volatile long cell;
static void count(int number) { signals++; }
int main(void) {
    signal(SIGINT, count);
    signal(SIGTERM, count);
    printf("%d\n", (int)getpid()); fflush(stdout);
    while (!signals) (void)cell;
    struct timespec left = {1, 0};
    while (nanosleep(&left, &left)) ;
    printf("%d signals\n", (int)signals);
    return 0;
}
"""


@needs_qemu
@needs_cc
@pytest.mark.parametrize("whom", ["group", "capture"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_has_the_time_to_save(
    build: Callable[..., Path], tmp_path: Path, whom: str, number: signal.Signals
) -> None:
    """It receives the signal once, whoever sends it, and is recorded to its end; after SIGTERM, as
    services get it, the trace is complete."""
    run = Running(tmp_path / "saves.trace", build(SAVES), part=False)
    if whom == "group":
        os.killpg(run.capture.pid, number)
    else:
        run.capture.send_signal(number)
    stdout, stderr = run.capture.communicate(timeout=HANG)
    whole = number == signal.SIGTERM
    assert stdout == "1 signals\n" and run.capture.returncode == (0 if whole else 130), stderr
    assert info(run.trace)["complete"] is whole
    assert info(run.trace)["incomplete_reason"] == (None if whole else "interrupted")


LEAVES = r"""
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
static volatile sig_atomic_t over;
static void stop(int number) { over = 1; }
int main(void) {
    signal(SIGTERM, stop);
    if (fork() == 0) for (;;) pause();
    printf("%d\n", (int)getpid()); fflush(stdout);
    while (!over) pause();
    return 0;
}
"""


@needs_qemu
@needs_cc
def test_a_service_that_leaves_a_child_is_not_whole(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    run = Running(tmp_path / "leaves.trace", build(LEAVES), False, ["--follow-forks"])
    run.capture.send_signal(signal.SIGTERM)
    _, stderr = run.capture.communicate(timeout=HANG)
    assert run.capture.returncode == 130, stderr
    assert info(run.trace)["incomplete_reason"] == "interrupted"


@needs_qemu
@needs_cc
def test_control_c_at_a_terminal(build: Callable[..., Path], tmp_path: Path) -> None:
    words = [*NEARFAR, "capture", "-o", str(tmp_path / "t.trace"), "--", str(build(SAVES))]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(words[0], words)
    said = b""
    with contextlib.suppress(OSError):
        while more := os.read(terminal, 1 << 16):
            if b"\n" in more and b"\n" not in said:
                os.write(terminal, b"\x03")
            said += more
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    assert b"1 signals" in said and code == 130, said
    assert b"waiting for the program to end" in said


@needs_qemu
@needs_cc
def test_a_second_signal_ends_what_does_not_end(build: Callable[..., Path], tmp_path: Path) -> None:
    run = Running(tmp_path / "ever.trace", build(APART))
    run.capture.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert run.program_is_alive()

    def ends() -> bool:
        # Again and again: a signal that comes while the one before it is pending is lost.
        run.capture.send_signal(signal.SIGINT)
        time.sleep(0.3)
        return run.capture.poll() is not None

    until(ends, "the end of the capture")
    _, stderr = run.capture.communicate(timeout=HANG)
    assert run.capture.returncode == 130 and "Traceback" not in stderr, stderr
    assert not run.program_is_alive()
    assert info(run.trace)["incomplete_reason"] == "interrupted"


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


APART = r"""
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
static volatile long cell;
int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, 0);
    setsid();
    if (strstr(argv[0], "user")) setuid(65534);
    for (int number = 1; number < 32; number++) signal(number, SIG_IGN);
    printf("%d\n", (int)getpid()); fflush(stdout);
    for (int i = 0; i < 20000000; i++) (void)cell;
    for (;;) strstr(argv[0], "idle") ? pause() : (int)cell;
}
"""


@needs_qemu
@needs_cc
@pytest.mark.parametrize("name", ["together", "busy", "idle", "idle-user"])
def test_capture_killed(build: Callable[..., Path], tmp_path: Path, name: str) -> None:
    """The program ends with it, wherever it has gone: nobody would record it any more."""
    program = tmp_path / name
    shutil.copy(build(FOREVER if name == "together" else APART), program)
    run = Running(tmp_path / "ever.trace", program)
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


FLUSHES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void note(const char *what, const char *path) {
    char line[PATH_MAX + 20];
    int log = open(getenv("FLUSHES"), O_WRONLY | O_APPEND | O_CREAT, 0600);
    int bytes = snprintf(line, sizeof line, "%s %s\n", what, path);
    if (log < 0 || write(log, line, bytes) != bytes) abort();
    close(log);
}
int fdatasync(int fd) {
    char link[64], path[PATH_MAX] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    if (readlink(link, path, sizeof path - 1) < 0) abort();
    note("flush", path);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
int rename(const char *from, const char *to) {
    note("rename", from);
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename"))(from, to);
}
"""


@needs_qemu
@needs_cc
def test_what_is_finished_is_on_the_disk(build: Callable[..., Path], tmp_path: Path) -> None:
    """Every file is flushed before the trace says that it is complete, and then its folder."""
    log, trace = tmp_path / "log", tmp_path / "true.trace"
    library = build(FLUSHES, "-shared", "-fPIC", "-ldl")
    preloaded = {**os.environ, "LD_PRELOAD": str(library), "FLUSHES": str(log)}
    done = nearfar("-o", trace, "--", "/bin/true", env=preloaded)
    assert done.returncode == 0, done.stderr
    steps = [line.split(" ", 1) for line in log.read_text().splitlines()]
    listed = ["rename", str(trace / ".trace.json.partial")]
    complete = max(at for at, step in enumerate(steps) if step == listed)
    last = steps.index(["rename", str(trace / ".part-00000.parquet.partial")])
    flushed = {Path(path).name for step, path in steps[last:complete] if step == "flush"}
    files = {"part-00000.parquet", ".regions.parquet.partial", ".trace.json.partial"}
    assert flushed == files
    assert ["flush", str(trace)] in steps[complete:]
