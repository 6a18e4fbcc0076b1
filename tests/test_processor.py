"""The account of processor time that `make test` ends with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import processor

#: Half a second of processor time in a process that the step starts.
BURN = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
WORK = "import time\nwhile time.process_time() < 0.5: pass"


def test_a_step_is_reported_with_what_its_children_used(tmp_path: Path) -> None:
    file = tmp_path / "made" / "steps"
    for step, command in (
        ("the work", [sys.executable, "-c", BURN, WORK]),
        ("a failure", ["sh", "-c", "exit 3"]),
    ):
        words = [sys.executable, processor.__file__, "run", str(file), step, *command]
        done = subprocess.run(words, check=False)
        assert done.returncode == (3 if step == "a failure" else 0)
    (work, failure) = file.read_text().splitlines()
    assert float(work.split()[0]) >= 0.5 and work.endswith(" the work")
    assert float(failure.split()[0]) < 0.5


@pytest.mark.parametrize(("budget", "over"), [(2.0, False), (1.9, True)])
def test_the_sum_stands_beside_the_budget(tmp_path: Path, budget: float, over: bool) -> None:
    file = tmp_path / "steps"
    file.write_text("90.0 engine and plugin\n30.0 Python tests\n")
    head, *lines = processor.report(file, budget).splitlines()
    assert head.startswith(f"processor time: 2.0 minutes of a budget of {budget:g}")
    assert ("over it" in head) is over
    assert lines == ["    1.5 min  engine and plugin", "    0.5 min  Python tests"]
