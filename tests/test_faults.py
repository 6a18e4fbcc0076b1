"""A few rounds of ``make chaos`` in which a system call or allocation of a command fails."""

from __future__ import annotations

import subprocess
import sys

import pytest

import faults
from conftest import HANG


@pytest.mark.parametrize("case", [case.name for case in faults.cases()])
@pytest.mark.long("each call of the system fails once")
def test_a_failing_call_gives_one_line_and_no_partial_result(case: str) -> None:
    words = [sys.executable, faults.__file__, "--most", "3", case]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in faults.KINDS:
        assert f"{case}: {kind}: " in done.stdout
    # At least one failing call had an effect.
    assert " with 2" in done.stdout
