"""Programs that change user, root or namespace are recorded, or the trace says until where."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest

from capturing import NEARFAR, info, nearfar, needs_cc, needs_qemu, records, regions
from conftest import HANG, until
from nearfar import capture

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its user")
NOBODY = 65534
DROPS = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")

DROP = r"""
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static volatile long cells[512];
int main(int argc, char **argv) {
    int failed = 0;
    if (!strcmp(argv[1], "setuid")) failed = setuid(65534);
    if (!strcmp(argv[1], "chroot")) failed = chroot(argv[2]) || chdir("/");
    if (!strcmp(argv[1], "unshare")) failed = unshare(CLONE_NEWNS) || chroot(argv[2]) || setuid(1);
    printf("%p %d\n", (void *)cells, (int)getpid()); fflush(stdout);
    for (int i = 0; i < 1000000; i++) (void)cells[0];
    return failed;
}
"""


def waits(process: int) -> bool:
    """Whether the first thread of a process sleeps."""
    stat = Path(f"/proc/{process}/stat").read_text()
    return stat.rsplit(") ", 1)[1][0] == "S"


@needs_root
@needs_qemu
@needs_cc
@pytest.mark.parametrize("what", ["setuid", "chroot", "unshare"])
def test_a_receiver_that_stalls_loses_nothing(
    build: Callable[..., Path], tmp_path: Path, what: str
) -> None:
    """A full ring makes the program wait, also after its privileges have changed."""
    trace = tmp_path / "drop.trace"
    command = [*NEARFAR, "capture", "-o", trace, "--", build(DROP), what, tmp_path]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout is not None
    addr, program = run.stdout.readline().split()
    run.send_signal(signal.SIGSTOP)
    until(lambda: waits(int(program)), "a program without room")
    time.sleep(1)  # longer than the program waits between checks for room
    run.send_signal(signal.SIGCONT)
    _, stderr = run.communicate(timeout=HANG)
    assert run.returncode == 0 and info(trace)["complete"], stderr
    assert "exited with status" not in stderr
    rows = pl.from_arrow(records(trace).select(["addr", "kind"]))
    assert rows.filter(addr=int(addr, 16), kind="load").height == 1_000_000


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plugin in a folder that only root can enter."""
    folder = tmp_path / "hidden"
    folder.mkdir(0o700)
    plugin = folder / "a, b.so"
    shutil.copy(capture.PLUGIN, plugin)
    plugin.chmod(0o644)
    monkeypatch.setattr(capture, "PLUGIN", plugin)


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that everybody can enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def programs(trace: Path) -> list[str]:
    return [Path(r["name"]).name for r in regions(trace) if r["event"] == "exec"]


@needs_root
@needs_qemu
@pytest.mark.usefixtures("hidden")
def test_exec_after_a_change_of_user(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = capture.run([*DROPS, "/bin/echo", "hello"], tmp_path / "a.trace")
    assert outcome.complete and outcome.exit_code == 0
    assert capfd.readouterr().out == "hello\n"
    assert programs(outcome.path) == ["echo"]
    assert all(t["records"] > 1000 for t in outcome.info["threads"])


@needs_root
@needs_qemu
@pytest.mark.usefixtures("hidden")
def test_exec_and_fork_after_a_change_of_user(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each program passes on the descriptors that the next exec needs."""
    words = "cd /; id -u; sh -c 'exec id -g'; exec echo end"
    outcome = capture.run(
        ["/bin/sh", "-c", f'{" ".join(DROPS)} sh -c "{words}"; id -u'],
        tmp_path / "a.trace",
        follow_forks=True,
    )
    assert capfd.readouterr().out.split() == [str(NOBODY), str(NOBODY), "end", "0"]
    assert outcome.complete, outcome.info["incomplete_reason"]
    assert sorted(programs(outcome.path)) == sorted(
        ["setpriv", "sh", "id", "sh", "id", "echo", "id"]
    )


@needs_root
@needs_qemu
@pytest.mark.parametrize("mounts", [[], ["--mount-proc"]])
def test_a_process_in_a_new_pid_namespace_is_recorded(tmp_path: Path, mounts: list[str]) -> None:
    trace = tmp_path / "a.trace"
    command = ["unshare", "--pid", *mounts, "--fork", "sh", "-c", "echo $$; exec echo end"]
    done = nearfar("--follow-forks", "-o", trace, "--", *command)
    assert done.stdout.split() == ["1", "end"] and info(trace)["complete"], done.stderr
    assert programs(trace) == ["sh", "echo"]


@needs_root
@needs_qemu
def test_a_change_to_the_same_user_leaves_no_descriptors_open(tmp_path: Path) -> None:
    trace = tmp_path / "a.trace"
    done = nearfar(
        "-o", trace, "--", "setpriv", "--reuid=0", "--clear-groups", "ls", "/proc/self/fd"
    )
    assert done.stdout.split() == ["0", "1", "2", "3"], done.stderr
    assert info(trace)["complete"]


HELLO = """
.globl _start
_start:
    mov $1, %eax
    mov $1, %edi
    lea text(%rip), %rsi
    mov $6, %edx
    syscall
    mov $60, %eax
    xor %edi, %edi
    syscall
text: .ascii "hello\\n"
"""


@needs_root
@needs_qemu
@needs_cc
@pytest.mark.parametrize("what", ["root", "unreadable", "closed"])
def test_a_program_that_cannot_be_followed_runs_unrecorded(
    build: Callable[..., Path], tmp_path: Path, root: Path, what: str
) -> None:
    """The trace says after which record the program is missing."""
    program = root / "hello"
    shutil.copy(build(HELLO, "-nostdlib", "-static", "-no-pie", suffix=".s"), program)
    program.chmod(0o711 if what == "unreadable" else 0o755)
    command, why, named = {
        # The new root has no QEMU.
        "root": (["chroot", root, "/hello"], "it cannot open QEMU", "/hello"),
        "unreadable": ([*DROPS, program], "cannot be read", program),
        # The program closes the descriptors that are kept for QEMU.
        "closed": (
            [*DROPS, "bash", "-c", f"exec 1020<&- 1021<&- 1022<&- 1023<&-; exec {program}"],
            "it cannot open QEMU",
            program,
        ),
    }[what]
    trace = tmp_path / "a.trace"
    done = nearfar("-o", trace, "--", *command)
    assert done.stdout == "hello\n" and done.returncode == 1, done.stderr
    found = info(trace)
    reason = found["incomplete_reason"]
    assert not found["complete"] and reason.startswith(f"{named} ran unrecorded after ")
    assert why in reason and reason in done.stderr
    assert f"after {found['records']} records" in reason
