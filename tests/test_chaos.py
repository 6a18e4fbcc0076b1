"""A few rounds of ``make chaos``: commands killed at random points, and full disks."""

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
def test_a_command_killed_at_random_points_loses_nothing(case: str) -> None:
    script = Path(chaos.__file__)
    command = [sys.executable, str(script), "--rounds", "2", "--seed", "1", case]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ended with") == 3, "two kills and a full disk"


@needs_userfaultfd
@needs_cc
@pytest.mark.long("kills at random points")
def test_processes_of_a_run_killed_at_random_points() -> None:
    """No process reads wrong data, and none but the victim ends without a message."""
    script = Path(chaos.__file__)
    rounds = 2 * len(chaos_run.FARS)
    command = [sys.executable, str(script), "--rounds", str(rounds), "--seed", "1", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" killed after ") == rounds


def test_every_command_with_an_output_option_is_a_chaos_case() -> None:
    from nearfar import cli

    with_output = {
        path.stem.rstrip("_")
        for path in Path(cli.__file__).parent.glob("[a-z]*.py")
        if '"-o", "--out"' in path.read_text(encoding="utf-8")
    }
    known = {case.name for case in chaos.cases()}
    # These write only small texts, with a function that other cases use too.
    assert with_output - known <= {"advise", "apply", "machine", "run"}, with_output - known
