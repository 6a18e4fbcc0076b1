"""A command that is a fork does what one does that starts Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Run


@pytest.mark.parametrize("words", [["--version"], ["pagin"], ["info", "no-such.trace"]])
def test_a_fork_tells_what_a_start_tells(
    words: list[str], nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "nearfar", *words]
    started = subprocess.run(command, capture_output=True, text=True, check=False)
    forked = nearfar(*words)
    for answer in ("returncode", "stdout", "stderr"):
        assert getattr(forked, answer) == getattr(started, answer)


def test_what_is_read_at_the_start_starts_python(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another PYTHONPATH may hold another nearfar."""
    (tmp_path / "nearfar").mkdir()
    (tmp_path / "nearfar" / "__init__.py").touch()
    (tmp_path / "nearfar" / "__main__.py").write_text("print('another')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert nearfar("--version").stdout == "another\n"
