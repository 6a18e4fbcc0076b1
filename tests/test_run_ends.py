"""``nearfar run``: a process that outlives its parent reads the data that was last written.

``nearfar`` prints a reason when it kills a process, which only one test here allows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import ends
from capturing import needs_cc
from tiers import needs_userfaultfd

POLICIES = ("ssp", "tpp", "none", "nomad")
#: Modes of ends.c: the least number of processes, and the exit code of the first.
MODES = {
    "daemon": (2, 0),
    "double": (3, 0),
    "exit": (2, 0),
    "loop": (9, 0),
    "grandchildren": (15, 0),
    "vfork": (5, 0),
    "forkexec": (6, 0),
    "threads": (5, 0),
    "prefork": (5, 137),
}
FARS = ("zstd", "shm", "file")
#: Mode, far tier, policy and random seed.
CASES = [
    (mode, far, POLICIES[(row + column) % len(POLICIES)], 10 * row + column)
    for row, mode in enumerate(MODES)
    for column, far in enumerate(FARS)
]
# More seeds for a random mode, and the tier lz4.
CASES += [("loop", far, "ssp", 100 + number) for number, far in enumerate(("shm", "zstd", "lz4"))]
CASES += [("exit", "lz4", "ssp", 1)]


def ended(
    mode: str, far: str, policy: str, seed: int, program: Path, server_and_folder: tuple[str, Path]
) -> ends.Ended:
    """Run a mode until its last process has ended; no process may have read wrong data."""
    commands, folder = server_and_folder
    results = folder / "results"
    tier = f"file:{folder / 'far'}" if far == "file" else far
    options = ["--fast", "2M", "--far", tier, "--policy", policy]
    done = ends.run(commands, [program, mode, 8, results, seed], options, results)
    assert not done.reports.wrong, (done.reports.wrong, done.said)
    assert not done.reports.near, done.reports.near
    return done


@needs_userfaultfd
@needs_cc
@pytest.mark.parametrize(("mode", "far", "policy", "seed"), CASES)
def test_processes_that_outlive_their_parent_read_what_was_written(
    mode: str,
    far: str,
    policy: str,
    seed: int,
    build: Callable[..., Path],
    commands: str,
    tmp_path: Path,
) -> None:
    program = build(ends.SOURCE.read_text(), "-pthread")
    done = ended(mode, far, policy, seed, program, (commands, tmp_path))
    assert not done.reports.lost(), (done.reports.lost(), done.said)
    processes, code = MODES[mode]
    assert len(done.reports.processes) >= processes
    assert (done.code, done.reasons()) == (code, []), done.said


@needs_userfaultfd
@needs_cc
@pytest.mark.parametrize("far", FARS)
def test_a_vfork_child_of_a_killed_parent_reads_no_zeros(
    far: str, build: Callable[..., Path], commands: str, tmp_path: Path
) -> None:
    """It shares the parent's memory, and may be killed with a reason."""
    program = build(ends.SOURCE.read_text(), "-pthread")
    done = ended("vforkkill", far, "ssp", 1, program, (commands, tmp_path))
    assert not done.reports.lost() or done.reasons(), done.reports.lost()
    assert done.code == 137


@needs_userfaultfd
@needs_cc
@pytest.mark.parametrize("seed", range(4))
def test_a_program_executed_while_the_run_ends_runs(
    seed: int, build: Callable[..., Path], commands: str, tmp_path: Path
) -> None:
    """It may be managed or not."""
    program = build(ends.SOURCE.read_text(), "-pthread")
    done = ended("late", "shm", "ssp", seed, program, (commands, tmp_path))
    assert not done.reports.lost(), (done.reports.lost(), done.said)
    assert len(done.reports.processes) == 7
    assert (done.code, done.reasons()) == (0, []), done.said
