"""``nearfar watch``: a running `nearfar run`, seen from another process."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import Run, refused, until
from nearfar import live, live_watch
from nearfar.errors import NearfarError
from pseudo_terminal import Terminal
from tiers import needs_userfaultfd

NEARFAR = [sys.executable, "-m", "nearfar"]
#: Writes to 12 MiB a few times a second until the file argv[1] exists.
PROGRAM = """
import os, random, sys, time
pages = [bytearray(random.randbytes(4096)) for _ in range(3000)]
print(os.getpid(), flush=True)
while not os.path.exists(sys.argv[1]):
    for page in pages: page[0] ^= 1
    time.sleep(0.2)
sys.exit(7)
"""


@dataclass
class Started:
    """A run that is under way: launcher, program, and the file that ends it."""

    launcher: subprocess.Popen[bytes]
    program: int
    end: Path


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    end = tmp_path / "end"
    command = [*NEARFAR, "run", "--fast", "8M", "--", sys.executable, "-c", PROGRAM, str(end)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert launcher.stdout is not None
        yield Started(launcher, int(launcher.stdout.readline()), end)
    finally:
        launcher.kill()
        launcher.wait()


def look(nearfar: Run, pid: int) -> dict[str, Any]:
    done = nearfar("watch", pid, "--format", "json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@needs_userfaultfd
def test_a_run_is_seen_by_its_launcher_and_its_program(nearfar: Run, started: Started) -> None:
    rates = ("faults_per_second", "promotions_per_second", "demotions_per_second", "manager_share")

    def busy() -> dict[str, Any]:
        found = look(nearfar, started.program)
        return found if all(found["rows"][-1][rate] for rate in rates) else {}

    before = until(busy, "a busy second")["rows"][-1]
    found = until(
        lambda: (
            (later := look(nearfar, started.launcher.pid))["rows"][-1]["promotions"]
            > before["promotions"]
            and later
        ),
        "more promotions",
    )
    run, (whole, *processes) = found["run"], found["rows"]
    assert run["launcher"] == started.launcher.pid and whole["pid"] is None
    assert (run["policy"], run["far"], run["fast_bytes"]) == ("ssp", "zstd", 8 << 20)
    assert not run["is_over"] and run["exit_code"] is None
    assert [row["pid"] for row in processes] == [started.program]
    own = processes[0]
    assert own["command"].startswith(f"{sys.executable} -c") and own["budget_bytes"] == 8 << 20
    for row in found["rows"]:
        assert 0 < row["fast_bytes"] <= row["fast_peak_bytes"]
        assert 0 < row["far_pages_bytes"] <= row["far_pages_peak_bytes"]
        assert row["far_bytes"] > 0 and row["manager_seconds"] > 0
    for name in ("faults", "demotions", "hint_faults", "manager_seconds"):
        assert own[name] >= before[name] > 0, name
    assert own["faults"] >= own["hint_faults"] and own["faults"] >= own["window_faults"]
    assert live_watch.runs()[started.launcher.pid].endswith(str(started.end))


@needs_userfaultfd
def test_output_to_a_pipe_is_a_table_or_rows(nearfar: Run, started: Started) -> None:
    table = nearfar("watch", started.program).stdout
    first, *lines = table.splitlines()
    assert first.startswith(f"run {started.launcher.pid}, ")
    assert any(
        line.split()[:2] == [str(started.program), Path(sys.executable).name] for line in lines
    )
    assert table.isascii() and "\x1b" not in table
    rows = list(
        csv.DictReader(nearfar("watch", started.program, "--format", "csv").stdout.splitlines())
    )
    assert [row["pid"] for row in rows] == ["", str(started.program)]
    # Only root may watch another user's run.
    done = nearfar("watch", started.launcher.pid, first="import os; os.setuid(65534)")
    refused(done, "is another user's; run as root")
    # In Python, the first snapshot comes at once, the last when the run is over.
    looks = live_watch.watch(started.program, every=0.1)
    assert next(looks).rows[0]["faults_per_second"] is None
    started.end.touch()
    *_, last = looks
    assert last.run["is_over"] and last.run["exit_code"] == 7 and len(last.rows) == 1
    assert last.rows[0]["faults"] > 0 and started.launcher.wait() == 7


@needs_userfaultfd
def test_at_a_terminal_a_run_is_shown_until_its_end(nearfar: Run, started: Started) -> None:
    words = [*NEARFAR, "watch", str(started.program)]
    # Ctrl-C ends `watch` alone, not the run.
    with Terminal(words) as shown:
        until(lambda: shown.read().count(b"policy ssp") > 1, "a second look")
        shown.child.send_signal(signal.SIGINT)
        assert shown.end() == 0
    assert b"error" not in shown.text and b"is over" not in shown.text
    assert not look(nearfar, started.program)["run"]["is_over"]
    with Terminal(words) as shown:
        until(lambda: b"policy ssp" in shown.read(), "a look")
        started.end.touch()
        assert shown.end() == 0
    assert b"is over: exit code 7" in shown.text


@needs_userfaultfd
def test_a_launcher_that_is_killed_is_over(started: Started) -> None:
    looks = live_watch.watch(started.launcher.pid, every=0.1)
    next(looks)
    started.launcher.kill()
    *_, last = looks
    assert last.run["is_over"] and last.run["exit_code"] is None


@pytest.mark.parametrize(("words", "says"), [
    (["sort"], "'sort' is not a process"),
    (["0"], "no such process"),
    (["99999999"], "no such process"),
    (["--format", "xml"], "'xml'"),
])  # fmt: skip
def test_wrong_processes_and_options_are_refused_in_one_line(
    words: list[str], says: str, nearfar: Run
) -> None:
    refused(nearfar("watch", *words), says)


def test_processes_that_are_no_run_of_this_version_are_refused() -> None:
    pid = os.getpid()
    with pytest.raises(NearfarError, match=f"watch {pid}: is neither"):
        live_watch.snapshot(pid)
    with os.fdopen(os.memfd_create("nearfar-run"), "wb") as file:
        file.truncate(4 << 20)
        with pytest.raises(NearfarError, match=f"watch {pid}: is of another version"):
            live_watch.snapshot(pid)


def test_the_progress_line_is_shortened_to_the_width() -> None:
    meter = live._Meter()
    counters = {"promotions": 100, "faults": 4000}
    now = {
        "seconds": 2.0,
        "now": [256, 1 << 18, 0, 9],
        "counters": counters,
        "manager_seconds": 0.5,
    }
    whole = "2 s: 1 MiB fast, 1 GiB far, 50 promotions/s, manager 25 % CPU, 2,000 faults/s"
    assert meter.line(now, 200) == whole
    # The rate is since the last line.
    later = {**now, "seconds": 3.0, "counters": {"promotions": 107, "faults": 4000}}
    assert meter.line(later, 50) == "3 s: 1 MiB fast, 1 GiB far, 7 promotions/s"
    assert live._Meter().line(now, 3) == "2 s: 1 MiB fast"
