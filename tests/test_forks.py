"""A command that runs as a fork (:mod:`forks`) equals one that starts Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Run


@pytest.mark.parametrize("words", [["--version"], ["pagin"], ["info", "no-such.trace"]])
def test_a_fork_has_the_output_and_exit_code_of_a_new_process(
    words: list[str], nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "nearfar", *words]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    forked = nearfar(*words)
    for part in ("returncode", "stdout", "stderr"):
        assert getattr(forked, part) == getattr(started, part)


def test_a_variable_that_python_reads_at_its_start_makes_a_new_process(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another PYTHONPATH may hold another nearfar."""
    (tmp_path / "nearfar").mkdir()
    (tmp_path / "nearfar" / "__init__.py").touch()
    (tmp_path / "nearfar" / "__main__.py").write_text("print('another')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert nearfar("--version").stdout == "another\n"
