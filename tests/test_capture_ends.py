"""A capture that is interrupted, killed or out of disk space keeps its finished parts."""

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
from chaos_commands import alive
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
def test_a_crash_leaves_an_incomplete_trace(build: Callable[..., Path], tmp_path: Path) -> None:
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
    """A running capture of an executable that prints its process id, stored in `program`."""

    def __init__(
        self, trace: Path, executable: Path, await_part: bool = True, options: Sequence[str] = ()
    ) -> None:
        self.trace = trace
        self.capture = subprocess.Popen(
            [*NEARFAR, "capture", *options, "-o", str(trace), "--", str(executable)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.capture.stdout is not None
        self.program = int(self.capture.stdout.readline())
        if await_part:
            until(lambda: info(trace)["parts"], "a finished part")


@needs_qemu
@needs_cc
@pytest.mark.parametrize("receiver", ["group", "capture"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_capture_ends_its_program_and_keeps_its_records(
    build: Callable[..., Path], tmp_path: Path, receiver: str, number: signal.Signals
) -> None:
    run = Running(tmp_path / "ever.trace", build(FOREVER))
    if receiver == "group":
        os.killpg(run.capture.pid, number)
    else:
        run.capture.send_signal(number)
    _, stderr = run.capture.communicate(timeout=HANG)
    assert run.capture.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert not alive(run.program)
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
@pytest.mark.parametrize("receiver", ["group", "capture"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_program_may_run_on_after_a_signal(
    build: Callable[..., Path], tmp_path: Path, receiver: str, number: signal.Signals
) -> None:
    """The program gets the signal once, even if it is sent to the process group, and is recorded
    to its end. SIGTERM is the normal end of a service, so its trace is complete."""
    run = Running(tmp_path / "saves.trace", build(SAVES), await_part=False)
    if receiver == "group":
        os.killpg(run.capture.pid, number)
    else:
        run.capture.send_signal(number)
    stdout, stderr = run.capture.communicate(timeout=HANG)
    complete = number == signal.SIGTERM
    assert stdout == "1 signals\n" and run.capture.returncode == (0 if complete else 130), stderr
    assert info(run.trace)["complete"] is complete
    assert info(run.trace)["incomplete_reason"] == (None if complete else "interrupted")


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
def test_a_service_that_leaves_a_child_running_gives_an_incomplete_trace(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    options = ["--follow-forks"]
    run = Running(tmp_path / "leaves.trace", build(LEAVES), await_part=False, options=options)
    run.capture.send_signal(signal.SIGTERM)
    _, stderr = run.capture.communicate(timeout=HANG)
    assert run.capture.returncode == 130, stderr
    assert info(run.trace)["incomplete_reason"] == "interrupted"


@needs_qemu
@needs_cc
def test_ctrl_c_waits_for_the_program(build: Callable[..., Path], tmp_path: Path) -> None:
    command = [*NEARFAR, "capture", "-o", str(tmp_path / "t.trace"), "--", str(build(SAVES))]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], command)
    output = b""
    with contextlib.suppress(OSError):
        while more := os.read(terminal, 1 << 16):
            if b"\n" in more and b"\n" not in output:
                os.write(terminal, b"\x03")
            output += more
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(terminal)
    assert b"1 signals" in output and code == 130, output
    assert b"waiting for the program to end" in output


@needs_qemu
@needs_cc
def test_a_second_signal_kills_the_program(build: Callable[..., Path], tmp_path: Path) -> None:
    run = Running(tmp_path / "ever.trace", build(APART))
    run.capture.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert alive(run.program)

    def ended() -> bool:
        # Repeated, because a signal is lost while an earlier one is pending.
        run.capture.send_signal(signal.SIGINT)
        time.sleep(0.3)
        return run.capture.poll() is not None

    until(ended, "the end of the capture")
    _, stderr = run.capture.communicate(timeout=HANG)
    assert run.capture.returncode == 130 and "Traceback" not in stderr, stderr
    assert not alive(run.program)
    assert info(run.trace)["incomplete_reason"] == "interrupted"


@needs_qemu
@needs_cc
def test_sigkill_leaves_an_incomplete_trace(build: Callable[..., Path], tmp_path: Path) -> None:
    run = Running(tmp_path / "ever.trace", build(FOREVER), await_part=False)
    time.sleep(0.3)
    os.kill(run.program, signal.SIGKILL)
    _, stderr = run.capture.communicate(timeout=HANG)
    assert run.capture.returncode == 1, stderr
    found = info(run.trace)
    assert found["incomplete_reason"] == "program killed by signal 9"
    assert found["records"] == records(run.trace).num_rows > 0


#: Ignores signals in its own session; "user" in its name makes it change user, "idle" sleep.
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
def test_a_killed_capture_ends_its_program(
    build: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """A program that nothing records must end, even in another session or as another user."""
    program = tmp_path / name
    shutil.copy(build(FOREVER if name == "together" else APART), program)
    run = Running(tmp_path / "ever.trace", program)
    run.capture.kill()
    run.capture.wait(timeout=HANG)
    try:
        until(lambda: not alive(run.program), "the end of the program")
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
def test_an_earlier_trace_stays_until_a_new_one_replaces_it(
    build: Callable[..., Path], tmp_path: Path
) -> None:
    """Even if the program cannot start, or the capture is killed before its first part."""
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
    options = ["--force", "--max-refs", "1000"]
    run = Running(trace, build(FOREVER), await_part=False, options=options)
    run.capture.kill()
    run.capture.wait(timeout=HANG)
    assert info(trace)["records"] == 0 and not info(trace)["complete"]
    assert info(kept) == before
    done = nearfar("--force", "-o", trace, "--", "/bin/true")
    assert done.returncode == 0 and info(trace)["complete"]
    assert [path.name for path in tmp_path.glob(".*")] == []


@needs_qemu
@needs_cc
def test_a_full_disk_ends_capture_and_program(build: Callable[..., Path], tmp_path: Path) -> None:
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
        assert not alive(int(done.stdout))
    finally:
        subprocess.run(["umount", small], check=True)


#: A preloaded library that logs calls of fdatasync and rename to the file FLUSHES.
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
def test_files_are_flushed_before_completion(build: Callable[..., Path], tmp_path: Path) -> None:
    log, trace = tmp_path / "log", tmp_path / "true.trace"
    library = build(FLUSHES, "-shared", "-fPIC", "-ldl")
    preloaded = {**os.environ, "LD_PRELOAD": str(library), "FLUSHES": str(log)}
    done = nearfar("-o", trace, "--", "/bin/true", env=preloaded)
    assert done.returncode == 0, done.stderr
    steps = [line.split(" ", 1) for line in log.read_text().splitlines()]
    rename_json = ["rename", str(trace / ".trace.json.partial")]
    complete = max(at for at, step in enumerate(steps) if step == rename_json)
    part_renamed = steps.index(["rename", str(trace / ".part-00000.parquet.partial")])
    flushed = {Path(path).name for step, path in steps[part_renamed:complete] if step == "flush"}
    files = {"part-00000.parquet", ".regions.parquet.partial", ".trace.json.partial"}
    assert flushed == files
    assert ["flush", str(trace)] in steps[complete:], "the folder is flushed last"
