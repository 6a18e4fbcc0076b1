"""``nearfar run --alone``: measures time and peak memory of the program without nearfar first."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import HANG, Run, refused
from nearfar.errors import NearfarError
from nearfar.live_alone import measure
from nearfar.run_folder import open_run
from tiers import needs_userfaultfd

MIB = 1 << 20
#: Prints the length of its input; with an argument, exits with the number of its runs so far.
COUNTS = """
import os, sys
os.write(1, b"%d\\n" % len(os.read(0, 99)))
with open("runs", "a+") as runs:
    runs.write("x")
    sys.exit(runs.tell() if sys.argv[1:] else 0)
"""


def python(text: str, **streams: object) -> subprocess.CompletedProcess[str]:
    """Run a script that calls `measure` in a process of its own, with its own standard input."""
    whole = f"from nearfar.live_alone import measure\n{text}"
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", whole],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        **streams,
    )


def test_time_memory_and_exit_code_are_the_programs(tmp_path: Path) -> None:
    code = "import time; held = b'x' * (40 << 20); time.sleep(1); raise SystemExit(7)"
    found = measure([sys.executable, "-c", code])
    assert found.exit_code == 7 and found.seconds > 1
    assert 40 * MIB < found.resident_bytes < 100 * MIB
    assert measure(["sh", "-c", "kill -9 $$"]).exit_code == 137
    with pytest.raises(NearfarError, match="no-such-program"):
        measure(["no-such-program"])


def test_the_largest_process_counts() -> None:
    """A budget applies to each process, so a share is of the largest process, not of the sum."""
    code = "import subprocess, sys; held = b'x' * (30 << 20); subprocess.run(sys.argv[1:])"
    inner = "import time; held = b'x' * (60 << 20); time.sleep(1)"
    found = measure([sys.executable, "-c", code, sys.executable, "-c", inner])
    assert 60 * MIB < found.resident_bytes < 90 * MIB


def test_output_is_discarded_and_input_is_rewound(tmp_path: Path) -> None:
    text = f"""
import os, sys
found = measure([sys.executable, "-c", {COUNTS!r}])
print(found.exit_code, os.read(0, 99))
"""
    given = tmp_path / "given"
    given.write_text("some text")
    with given.open() as file:
        file.seek(5)
        done = python(text, stdin=file.fileno(), cwd=tmp_path)
    assert (done.stdout, done.stderr) == ("0 b'text'\n", "")


@pytest.mark.parametrize("stream", [subprocess.PIPE, "/dev/zero"])
def test_input_that_cannot_be_rewound_is_refused(stream: object, tmp_path: Path) -> None:
    text = f"measure([{sys.executable!r}, '-c', {COUNTS!r}])"
    if isinstance(stream, str):
        with Path(stream).open() as file:
            done = python(text, stdin=file.fileno(), cwd=tmp_path)
    else:
        done = python(text, stdin=stream, cwd=tmp_path)
    assert "--alone: runs the program twice" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


def test_the_program_is_not_run_again_after_ctrl_c() -> None:
    text = """
try: measure(["sh", "-c", "kill -INT $PPID; exit 7"])
except KeyboardInterrupt: print("interrupted")
"""
    assert python(text).stdout == "interrupted\n"


def test_an_outer_run_is_not_inherited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NEARFAR_RUN", "fast=1")
    monkeypatch.setenv("LD_PRELOAD", "/x/_live/libnearfar_preload.so:/y/other.so")
    out = tmp_path / "out"
    measure(["sh", "-c", f"echo $NEARFAR_RUN,$LD_PRELOAD > {out}"])
    assert out.read_text() == ",/y/other.so\n"


@needs_userfaultfd
def test_the_slowdown_is_printed_and_recorded(nearfar: Run, tmp_path: Path) -> None:
    out, program = tmp_path / "a.run", ["sh", "-c", "seq 50000 | sort -n | tail -1"]
    done = nearfar("run", "--fast", "4M", "--alone", "-o", out, "--", *program)
    assert (done.returncode, done.stdout) == (0, "50000\n"), done.stderr
    first, second, *_ = done.stderr.splitlines()
    says = "nearfar: --alone: running the program without nearfar first; its output is discarded"
    assert first == says and "x as long as without nearfar (" in second
    run = json.loads((out / "run.json").read_text())
    assert run["command"].startswith("nearfar run --fast 4M --alone -- sh -c ")
    result = open_run(out).result
    (row,) = result.table.to_pylist()
    assert row["alone_exit_code"] == 0 and row["budget_bytes"] == 4 * MIB
    assert row["slowdown"] == row["seconds"] / row["alone_seconds"] == result.slowdown
    done = nearfar("run", "--fast", "4M", "--no-alone", "--", *program)
    assert "for the slowdown add --alone)" in done.stderr.splitlines()[0]


@needs_userfaultfd
def test_a_share_is_of_the_peak_of_the_bare_program(
    nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "a.run"
    code = "import time; held = b'x' * (40 << 20); time.sleep(1); print('done')"
    done = nearfar("run", "--fast", "50%", "-o", out, "--", sys.executable, "-c", code)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert done.stderr.startswith("nearfar: --fast 50%: running the program without nearfar first;")
    (row,) = open_run(out).result.table.to_pylist()
    assert row["alone_bytes"] > 40 * MIB
    assert 0 <= 2 * row["budget_bytes"] - row["alone_bytes"] <= 2 * 4096
    run = json.loads((out / "run.json").read_text())
    assert run["command"].startswith("nearfar run --fast 50% -- ")
    # Runs with different exit codes have no slowdown.
    words = ["sh", "-c", 'exec "$@"', "sh", sys.executable, "-c", COUNTS, "x"]
    done = nearfar("run", "--fast", "200M", "--alone", "--", *words)
    assert done.returncode == 2 and " s without nearfar, with exit code 1. " in done.stderr, (
        done.stderr
    )


@pytest.mark.parametrize(("words", "says"), [
    (["--fast", "0%", "--", "touch", "ran"], "is not above 0 %"),
    (["--fast", "10%,50%", "--", "touch", "ran"], "not one size"),
    (["--fast", "x%", "--", "touch", "ran"], "--fast"),
    (["--fast", "50%", "--", "no-such-program"], "no such program"),
    (["--fast", "50%", "--policy", "memtis", "--", "touch", "ran"], "samples"),
    (["--fast", "4M", "--alone", "--far", "tape", "--", "touch", "ran"], "zstd, lz4"),
    (["--fast", "4M", "--alone", "--knob", "notise=x", "--", "touch", "ran"], "`notice`"),
    (["--fast", "4M", "--alone"], "COMMAND"),
])  # fmt: skip
def test_wrong_options_are_refused_before_the_bare_run(
    words: list[str], says: str, nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(nearfar("run", *words), says, codes=(2, 3))
    assert not (tmp_path / "ran").exists()


@needs_userfaultfd
def test_a_share_that_is_too_little_is_refused(nearfar: Run) -> None:
    done = nearfar("run", "--fast", "1%", "--", "true")
    _, says = done.stderr.splitlines()
    assert done.returncode == 2 and "--fast: 1% of the program's peak private memory (" in says


@needs_userfaultfd
@pytest.mark.parametrize("page", ["docs/tours.md", "docs/run.md"])
def test_pages_move_in_the_examples(
    page: str, nearfar: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[1] / page).read_text()
    found = re.search(r"^\$ (shuf .*)\n\$ nearfar run (.*)$", text, re.MULTILINE)
    assert found, page
    subprocess.run(["sh", "-c", found[1]], check=True)
    done = nearfar("run", "-o", "a.run", *shlex.split(found[2]))
    assert done.returncode == 0, done.stderr
    (row,) = open_run(tmp_path / "a.run").result.table.to_pylist()
    for what in ("promotions", "demotions_copied", "far_loads", "far_stores", "hint_faults"):
        assert row[what] > 100, (what, row)
