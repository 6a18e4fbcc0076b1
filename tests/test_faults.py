"""One call of the system after the other fails: a few of those that ``make chaos`` goes through."""

from __future__ import annotations

import subprocess
import sys

import pytest

import faults
from conftest import HANG


@pytest.mark.parametrize("case", [case.name for case in faults.cases()])
@pytest.mark.long("each call of the system fails once")
def test_calls_that_fail(case: str) -> None:
    """One line each, nothing half-written."""
    words = [sys.executable, faults.__file__, "--most", "3", case]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in faults.KINDS:
        assert f"{case}: {kind}: " in done.stdout
    # Some calls that fail are noticed, or nothing was tried.
    assert " with 2" in done.stdout
