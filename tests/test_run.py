"""``nearfar run``: real programs in two memory tiers behave as they do without it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from capturing import needs_cc
from conftest import Run, refused, until
from nearfar import live
from nearfar.run_folder import open_run
from tiers import needs_userfaultfd, run

HERE = Path(__file__).parent
#: Hashes 40 MiB of text repeatedly, in a process and in its fork.
PYTHON = """
import hashlib, os, random
draw = random.Random(1)
texts = [draw.randbytes(1000) * 1049 for _ in range(40)]
def digest():
    whole = hashlib.sha256()
    for _ in range(4):
        for text in texts: whole.update(text)
    return whole.hexdigest()
before = digest()
child = os.fork()
if child == 0:
    print("child", digest(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
texts[7] = b"x"
print("parent", before, digest())
"""
#: With 10 MiB, as far tiers with a latency are slow. The program waits first, so that it does not
#: end before the manager has seen its memory.
WAITS = PYTHON.replace("range(40)", "range(10)").replace(
    "before = digest()", "__import__('time').sleep(1)\nbefore = digest()"
)


@functools.cache
def bare(code: str) -> str:
    """What the program prints without nearfar."""
    words = [sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


@needs_userfaultfd
@pytest.mark.parametrize(("fast", "far", "policy"), [
    ("10M", "zstd", "ssp"),
    ("20M", "lz4", "nomad"),
    ("30M", "shm", "tpp"),
])  # fmt: skip
def test_a_program_and_its_fork_read_what_they_wrote(fast: str, far: str, policy: str) -> None:
    output, outcome = run(sys.executable, "-c", PYTHON, fast=fast, far=far, policy=policy)
    assert output == bare(PYTHON) and outcome.exit_code == 0
    seen = outcome.counters
    assert seen["forks"] == 1 and seen["demotions_copied"] > 100 and seen["far_loads"] > 100


@needs_userfaultfd
@pytest.mark.parametrize("epf", ["all", "none", "smart:50us"])
def test_pages_come_from_a_device_with_flash(epf: str) -> None:
    output, outcome = run(
        sys.executable, "-c", WAITS, fast="10M", far="umd:umd", policy="tpp", epf=epf
    )
    assert output == bare(WAITS) and outcome.exit_code == 0
    seen = outcome.counters
    assert seen["fetches"] > 100 and seen["fetches_ns"] >= seen["fetches_predicted_ns"]
    # A read of this flash takes 25 us.
    assert seen["fetches_ns"] / seen["fetches"] > 25_000
    # With one faulting thread, a fetch that should not sleep can always stall.
    assert (seen["slept"] > 0) == (epf != "none"), seen
    assert (seen["stalled"] > 0) == (epf != "all"), seen
    assert "Waited for the far tier" in str(outcome)


@needs_userfaultfd
def test_a_fetch_takes_at_least_the_far_latency() -> None:
    output, outcome = run(
        sys.executable, "-c", WAITS, fast="10M", far="shm", policy="tpp", far_latency="200us"
    )
    assert output == bare(WAITS)
    seen = outcome.counters
    assert seen["fetches"] > 0, seen
    assert seen["fetches_ns"] >= 200_000 * seen["fetches"]
    assert seen["fetches_predicted_ns"] == 200_000 * seen["fetches"] and seen["stalled"] == 0


@needs_userfaultfd
@needs_cc
@pytest.mark.parametrize("far", ["zstd", "shm", "file"])
def test_no_page_is_wrong(far: str, tmp_path: Path, build: Callable[..., Path]) -> None:
    program = build((HERE / "soak.c").read_text(), "-pthread")
    words = [str(program), "32", "10000", "3", str(tmp_path / "read")]
    far = f"file:{tmp_path / 'far'}" if far == "file" else far
    output, outcome = run(*words, fast="8M", far=far, policy="ssp")
    assert output == "0 pages were wrong\n" and outcome.exit_code == 0
    seen = outcome.counters
    for what in ("promotions", "demotions_copied", "shadow_faults", "released", "forks"):
        assert seen[what] > 0, (what, seen)


@needs_userfaultfd
@needs_cc
def test_mappings_that_change_are_followed(build: Callable[..., Path]) -> None:
    """userfaultfd copies into one mapping at a time, and moves only between compatible ones."""
    program = build((HERE / "mappings.c").read_text())
    output, outcome = run(str(program), fast="2M", far="lz4", policy="ssp")
    assert output == "0 pages were wrong\n" and outcome.exit_code == 0
    assert outcome.counters["first_touches"] > 100 and outcome.counters["promotions"] > 100


@needs_userfaultfd
def test_the_program_has_no_huge_pages() -> None:
    output, outcome = run("grep", "THP_enabled", "/proc/self/status", fast="4M", far="lz4")
    assert outcome.exit_code == 0 and output == "THP_enabled:\t0\n"


@needs_userfaultfd
def test_streams_and_exit_codes_are_the_programs(nearfar: Run, tmp_path: Path) -> None:
    done = nearfar("run", "--fast", "4M", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert done.stderr.startswith("err\nnearfar: ")
    done = nearfar("run", "--fast", "4M", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    # A pipe ends with the program that writes to it, not with its manager.
    done = nearfar("run", "--fast", "4M", "--", "sh", "-c", "seq 3 | (read a; cat) | tail -1")
    assert (done.returncode, done.stdout) == (0, "3\n")


@needs_userfaultfd
def test_a_run_is_recorded_compared_and_reported(nearfar: Run, tmp_path: Path) -> None:
    words = ["--fast", "4M", "--knob", "notice=write-protect"]
    program = ["sh", "-c", "seq 99999 | sort -n | tail -1"]
    for policy in ("ssp", "tpp"):
        knobs = words if policy == "ssp" else words[:2]
        out = tmp_path / f"{policy}.run"
        done = nearfar("run", *knobs, "--policy", policy, "-o", out, "--", *program)
        assert (done.returncode, done.stdout) == (0, "99999\n"), done.stderr
    run = json.loads((tmp_path / "ssp.run" / "run.json").read_text())
    assert run["command"] == (
        "nearfar run --fast 4M --knob notice=write-protect -- sh -c 'seq 99999 | sort -n | tail -1'"
    )
    assert run["options"]["knobs"] == {"notice": "write-protect"} and run["program"] == program
    opened = open_run(tmp_path / "ssp.run")
    outcome = opened.result
    assert isinstance(outcome, live.Outcome) and opened.study.name == "run"
    assert outcome.counters.keys() == live.counters().keys() and outcome.command == program
    (row,) = outcome.table.to_pylist()
    assert row["budget_bytes"] == 4 << 20 and row["far_size_bytes"] == 64 << 20
    assert row["knobs"] == "notice=write-protect" and row["far_latency_ns"] == 0
    assert live.Outcome(**json.loads(outcome.to_json())) == outcome
    done = nearfar("run", *words, "-o", tmp_path / "ssp.run", "--", *program)
    assert done.returncode == 2 and "--force" in done.stderr and done.stdout == ""

    done = nearfar("diff", tmp_path / "tpp.run", tmp_path / "ssp.run", "--metric", "shadow_faults")
    assert done.returncode == 0 and "policy: tpp in A, ssp in B" in done.stdout, done.stderr
    done = nearfar("report", tmp_path / "tpp.run", "-o", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "in two tiers" in (tmp_path / "page.html").read_text()


@needs_userfaultfd
def test_policies_are_swept(nearfar: Run, tmp_path: Path) -> None:
    """Programs get empty standard input, and their output does not mix with the sweep's."""
    file = tmp_path / "study.toml"
    file.write_text(
        'study = "run"\n[grid]\npolicy = ["tpp", "ssp", "memtis"]\n[options]\nfast = "4M"\n'
        'command = ["sh", "-c", "cat; seq 999 | tail -1"]\n'
    )
    out = tmp_path / "study.sweep"
    done = nearfar("sweep", file, "-o", out, "--workers", "1", "--format", "json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert [cell["status"] for cell in found["cells"]] == ["done", "done", "failed"]
    assert "samples" in found["cells"][2]["error"]
    assert [row["policy"] for row in found["rows"]] == ["tpp", "ssp"]
    assert all(row["exit_code"] == 0 and row["images"] > 1 for row in found["rows"])


@needs_userfaultfd
def test_a_process_that_outlives_the_run_can_start_programs(nearfar: Run, tmp_path: Path) -> None:
    late = tmp_path / "late"
    words = f"(while kill -0 $PPID 2> {tmp_path / 'none'}; do :; done; sh -c 'echo x > {late}') &"
    done = nearfar("run", "--fast", "4M", "--", "sh", "-c", words)
    assert done.returncode == 0
    until(late.exists, "a program that was started after the run had ended")


@needs_userfaultfd
def test_a_far_tier_that_fails_ends_the_program(nearfar: Run, tmp_path: Path) -> None:
    """The children end too, and a line says why."""
    # `ulimit -f` also limits the far tier's file.
    text = "b = bytes(range(256)) * 99999; [sum(b[::4096]) for _ in range(9999)]"
    program = f"{sys.executable} -c '{text}'"
    words = f"ulimit -f 64; sleep 1000 & exec {program}"
    far = f"file:{tmp_path / 'far'}"
    done = nearfar("run", "--fast", "4M", "--far", far, "--", "sh", "-c", words)
    assert (done.returncode, done.stdout) == (137, "")
    assert "the program was ended: process" in done.stderr
    assert "writing the far tier's file" in done.stderr
    until(lambda: not _running(b"sleep\x001000"), "all to end")


def _running(words: bytes) -> list[Path]:
    """Command-line files that hold these words; those of zombies are empty."""

    def read(path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError:
            return b""

    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if words in read(path)]


@pytest.mark.parametrize(("words", "says"), [
    (["--", "true"], "--fast"),
    (["--fast", "4M", "--"], "COMMAND"),
    (["--fast", "1K", "--", "true"], "1 MiB"),
    (["--fast", "4M", "--far", "tape", "--", "true"], "zstd, lz4"),
    (["--fast", "4M", "--far", "file:/dev/null/x", "--", "true"], "/dev/null/x"),
    (["--fast", "4M", "--policy", "memtis", "--", "true"], "samples"),
    (["--fast", "4M", "--policy", "oracle", "--", "true"], "future"),
    (["--fast", "4M", "--knob", "notice", "--", "true"], "NAME=VALUE"),
    (["--fast", "4M", "--knob", "notise=x", "--", "true"], "`notice`"),
    (["--fast", "4M", "--", "no-such-program"], "no such program"),
])  # fmt: skip
def test_wrong_options_are_refused_in_one_line(words: list[str], says: str, nearfar: Run) -> None:
    refused(nearfar("run", *words), says, codes=(2, 3))


@needs_cc
def test_a_static_program_is_refused(nearfar: Run, build: Callable[..., Path]) -> None:
    program = build("int main(void) { return 0; }", "-static")
    refused(nearfar("run", "--fast", "4M", "--", program), "static program")
