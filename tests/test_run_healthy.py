"""``nearfar run`` kills no healthy program. One whose manager ended is killed, with a reason.

Exit code and output of ``healthy.c`` must be the same with and without nearfar.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet
import pytest

import ends
from capturing import needs_cc
from chaos_commands import alive, children
from tiers import needs_userfaultfd

SOURCE = Path(__file__).with_name("healthy.c")
#: Seconds after which a program counts as hung; the longest takes a quarter of them.
PATIENCE = 90.0
NEARFAR = [sys.executable, "-m", "nearfar", "run"]
#: The arguments of healthy.c, kind and number, and options of the run.
KINDS = [
    ("forks", 24, "--fast 4M --far-size 128M --far shm --far-latency 300us"),
    ("forks", 48, "--fast 4M --far-size 128M --far zstd --policy tpp"),
    ("locks", 16, "--fast 4M"),
    ("reserves", 4, "--fast 4M"),
    ("sparse", 1, "--fast 1M"),
    ("merges", 4, "--fast 2M"),
    ("aborts", 16, "--fast 4M"),
    ("renews", 16, "--fast 4M"),
    ("leaves", 8, "--fast 4M"),
    ("leaves-another", 8, "--fast 4M"),
]


@pytest.fixture(scope="module")
def program(build: Callable[..., Path]) -> Path:
    return build(SOURCE.read_text(), "-pthread")


def check_same(program: Path, kind: str, number: int, options: str, folder: Path) -> None:
    """Check that the program does the same alone and under ``nearfar run``, which kills nothing.

    FAR in ``options`` stands for a new file.
    """
    words = ["sh", "-c", 'ulimit -c unlimited; exec "$@"', "sh", str(program), kind, str(number)]
    given = options.replace("FAR", str(folder / "far")).split()
    alone, below = [
        subprocess.run(
            line, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        for line in (words, [*NEARFAR, *given, "--", *words])
    ]
    # After a signal, the exit code of a shell.
    code = alone.returncode if alone.returncode >= 0 else 128 - alone.returncode
    assert (below.returncode, below.stdout) == (code, alone.stdout), below.stderr
    assert "".join(f"{line}\n" for line in ends.without_summary(below.stderr)) == alone.stderr


@needs_userfaultfd
@needs_cc
@pytest.mark.parametrize(("kind", "number", "options"), KINDS)
def test_a_healthy_program_behaves_as_without_nearfar(
    kind: str, number: int, options: str, program: Path, tmp_path: Path
) -> None:
    check_same(program, kind, number, options, tmp_path)


@needs_userfaultfd
@needs_cc
@pytest.mark.long("much memory")
def test_a_program_with_much_far_memory_in_a_file_forks(program: Path, tmp_path: Path) -> None:
    check_same(program, "forks", 300, "--fast 16M --far-size 600M --far file:FAR", tmp_path)


# --- nearfar's own processes


@dataclass
class Running:
    """A program under ``nearfar run`` that uses its memory until it is killed."""

    program: Path
    launcher: subprocess.Popen[str]

    def own(self, kind: str) -> tuple[int, int]:
        """Process and thread id of nearfar's manager or keeper; skips the test if there is none."""
        for pid in children(self.launcher.pid):
            for found, task in ends.own(pid):
                if found == kind:
                    return pid, task
        pytest.skip(f"this nearfar has no {kind}")

    def ended(self) -> tuple[int, str, list[str]]:
        """Wait for the run to end; exit code, output, and nearfar's reasons for killing it."""
        processes = children(self.launcher.pid)
        out, err = self.launcher.communicate(timeout=PATIENCE)
        end = time.monotonic() + PATIENCE
        while any(map(alive, processes)):
            assert time.monotonic() < end, "processes run on"
            time.sleep(0.01)
        return self.launcher.returncode, out, ends.without_summary(err)


@pytest.fixture
def running(program: Path) -> Iterator[Running]:
    words = [str(program), "uses", "8"]
    launcher = subprocess.Popen(
        [*NEARFAR, "--fast", "2M", "--far", "shm", "--", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout
    assert launcher.stdout.readline() == "begun\n"
    yield Running(program, launcher)
    for pid in [*children(launcher.pid), launcher.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    launcher.communicate()


@needs_userfaultfd
@needs_cc
@pytest.mark.parametrize("kind", ["manager", "keeper"])
@pytest.mark.parametrize("way", ["killed", "ended"])
def test_a_program_that_lost_its_manager_is_killed_with_a_reason(
    kind: str, way: str, running: Running
) -> None:
    """A program may survive the keeper, which keeps the manager's descriptors open.

    If it does, the manager is killed as well.
    """
    process, task = running.own(kind)
    if way == "ended":
        # Makes the thread call exit, with ptrace.
        subprocess.run([running.program, "make-leave", str(task)], check=True, timeout=PATIENCE)
    elif task != process:
        pytest.skip(f"the {kind} is a thread of the program, and cannot be killed alone")
    else:
        os.kill(process, signal.SIGKILL)
    if kind == "keeper":
        time.sleep(1)
        if running.launcher.poll() is None:
            os.kill(running.own("manager")[0], signal.SIGKILL)
    code, out, reasons = running.ended()
    assert (code, out) == (137, "") and reasons, (code, out, reasons)


@needs_userfaultfd
@needs_cc
def test_a_program_that_is_killed_takes_its_manager_with_it(running: Running) -> None:
    """No reason is printed, as nearfar did not kill it."""
    processes = children(running.launcher.pid)
    programs = [pid for pid in processes if not any(task == pid for _, task in ends.own(pid))]
    os.kill(programs[0], signal.SIGKILL)
    assert running.ended() == (137, "", [])
    assert not any(map(alive, processes))


@needs_userfaultfd
def test_300_programs_run_one_after_another(tmp_path: Path) -> None:
    script = "n=0; while [ $n -lt 300 ]; do /bin/true || exit; n=$((n + 1)); done"
    words = [*NEARFAR, "--fast", "2M", "--far", "shm", "-o", "many.run", "--", "sh", "-c", script]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    row = pyarrow.parquet.read_table(tmp_path / "many.run" / "result.parquet").to_pylist()[0]
    # The shell, and the programs.
    assert row["images"] == 301
