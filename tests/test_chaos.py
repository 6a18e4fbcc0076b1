"""Commands killed at random points, and full disks: some rounds of ``make chaos``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import chaos
import chaos_run
from capturing import needs_cc
from conftest import HANG
from tiers import needs_userfaultfd

CASES = [case.name for case in chaos.cases() if not case.slow]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.long("kills at random points")
def test_killed_at_random_points(case: str) -> None:
    """Nothing lost, nothing half-written, and the command runs again."""
    script = Path(chaos.__file__)
    command = [sys.executable, str(script), "--rounds", "2", "--seed", "1", case]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ended with") == 3


@needs_userfaultfd
@needs_cc
@pytest.mark.long("kills at random points")
def test_processes_of_a_run_killed_at_random_points() -> None:
    """Nobody reads anything wrong, and nobody who was not killed is gone without a line."""
    script = Path(chaos.__file__)
    rounds = 2 * len(chaos_run.FARS)
    command = [sys.executable, str(script), "--rounds", str(rounds), "--seed", "1", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" killed after ") == rounds


def test_every_command_that_leaves_a_folder_is_a_case() -> None:
    """A command with ``-o`` that makes a result is killed, too."""
    from nearfar import cli

    leaves = {
        path.stem.rstrip("_")
        for path in Path(cli.__file__).parent.glob("[a-z]*.py")
        if '"-o", "--out"' in path.read_text(encoding="utf-8")
    }
    answer = {case.name for case in chaos.cases()}
    # Small texts, written by the one function that the others use, too.
    assert leaves - answer <= {"advise", "apply", "machine", "run"}, leaves - answer
