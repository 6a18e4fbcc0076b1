"""Rows are the same with whichever vector registers, and a level that is none is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nearfar import _engine

TESTS = Path(__file__).parent

#: Of `test_digests.py` what goes through loops that have variants: decoding, encoding, windows,
#: CLOCK, LRU, Linux's lists.
CASES = "gnugo and paging or gzip or generate or import"


def run(level: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Python with NEARFAR_SIMD set, which is read once a process."""
    environment = {**os.environ, "NEARFAR_SIMD": level}
    command = [sys.executable, *words]
    return subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("level", [name for name, _ in _engine.simd_levels()])
def test_rows_are_those_recorded_at_every_level(level: str) -> None:
    if not dict(_engine.simd_levels())[level]:
        pytest.skip(f"NEARFAR_SIMD={level} is not run here: the processor does not have it")
    done = run(level, "-m", "pytest", "-p", "no:cacheprovider", "-k", CASES,
               str(TESTS / "test_digests.py"))  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout


def test_a_level_that_is_none_is_one_line() -> None:
    code = "from nearfar.cli import main; main()"
    done = run("avx1024", "-c", code, "info", str(TESTS / "data" / "captures" / "gnugo.trace"))
    names = ", ".join(name for name, _ in _engine.simd_levels())
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f'nearfar: error: NEARFAR_SIMD: "avx1024" is not a level; set it to one of {names}, '
        "or unset it\n"
    )
