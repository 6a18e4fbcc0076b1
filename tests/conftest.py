"""Fixtures shared by the tests: traces made once a session, the command line as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"

# Where the tests were started in the background SIGINT is ignored, and what they start would
# inherit that: Ctrl-C could not be tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that run side by side are told how wide the terminal is, and would wrap tables to it.
os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generated trace with reuse, writes and scans: 200,000 references."""
    from nearfar.generate import generate

    path = tmp_path_factory.mktemp("mixed") / "mixed.trace"
    generate(
        "mix",
        path,
        refs=200_000,
        pages=700,
        seed=7,
        write_ratio=0.3,
        mix="zipf:0.7,sequential:0.3",
    )
    return path


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def nearfar() -> Run:
    """Run the command line as a user does; answers the finished process."""

    def run(*words: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        code = "from nearfar.cli import main; main()"
        command = [sys.executable, "-c", code, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)

    return run
