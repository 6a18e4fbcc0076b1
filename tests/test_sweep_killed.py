"""``nearfar sweep``, killed or interrupted, here and on Dask: no finished cell is lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from conftest import DATA, HANG, Run, refused, until
from nearfar.processes import children
from nearfar.sweep import sweep
from nearfar.sweep.cell import read_outcome
from sweeping import both_there, bytes_of, cluster, lay_out, stand_still, start, sweep_here

SLOW = """
study = "ssd"

[grid]
seed = [1, 2, 3, 4, 5, 6, 7, 8]

[options]
trace = "gzip.trace"
dram = ["60K"]
epf = ["none"]
precondition = [0.1, 0.0]
"""


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    folder = lay_out(tmp_path)
    (folder / "slow.toml").write_text(SLOW, encoding="utf-8")
    return folder


@pytest.fixture
def held(slow: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The slow sweep, which pauses at three finished cells until a file ``go`` exists."""
    stand_still(slow, monkeypatch, "nearfar.ssd", "ssd", "out/cells/[!.]*.json", 2)
    return slow


def finished(out: Path) -> list[str]:
    return sorted(path.stem for path in (out / "cells").glob("[!.]*.json"))


def check_complete(out: Path) -> None:
    """Check that every finished cell and every part of the dataset is complete."""
    for key in finished(out):
        outcome = read_outcome(key, out)
        assert outcome is not None
        assert outcome["status"] == "done"
        assert pq.read_table(out / "cells" / f"{key}.parquet").num_rows == outcome["rows"]
    for part in (out / "dataset").glob("*.parquet"):
        assert pq.read_table(part).num_rows == 1


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The dataset of the undisturbed slow sweep."""
    base = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(DATA / "captures" / "gzip.trace", base / "gzip.trace")
    (base / "slow.toml").write_text(SLOW, encoding="utf-8")
    sweep_here(base / "slow.toml", base / "out")
    return bytes_of(base / "out")


def test_killing_the_sweep_loses_no_finished_cell(held: Path, expected: dict[str, bytes]) -> None:
    out = held / "out"
    running = start("sweep", held / "slow.toml", "-o", out, "--workers", 2)
    until(lambda: len(finished(out)) >= 2, "two cells")
    workers = children(running.pid)
    assert len(workers) == 2
    running.kill()
    # Its workers finish their cells and exit, which closes the pipes.
    (held / "go").touch()
    running.communicate(timeout=HANG)
    until(lambda: not any(Path(f"/proc/{w}").exists() for w in workers), "end of the workers")
    before = {key: (out / "cells" / f"{key}.parquet").stat().st_ino for key in finished(out)}
    assert 2 <= len(before) < 8
    check_complete(out)
    result = sweep_here(held / "slow.toml", out)
    assert result.ran == 8 - len(before)
    for key, inode in before.items():
        assert (out / "cells" / f"{key}.parquet").stat().st_ino == inode
    assert bytes_of(out) == expected


def test_a_killed_worker_costs_one_try(held: Path, expected: dict[str, bytes]) -> None:
    out = held / "out"
    running = start("sweep", held / "slow.toml", "-o", out, "--workers", 2)
    until(lambda: finished(out), "a cell")
    victim = until(lambda: children(running.pid), "workers")[0]
    os.kill(victim, signal.SIGKILL)
    (held / "go").touch()
    printed, said = running.communicate(timeout=HANG)
    assert running.returncode == 0, said
    assert "8 cells, 8 done" in printed
    assert bytes_of(out) == expected


def test_a_cell_that_kills_its_workers_fails_alone(
    slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is killed at each try, as by the OOM killer."""
    (slow / "sitecustomize.py").write_text(
        "import functools, os, nearfar.ssd as s\n"
        "run = s.ssd\n"
        "@functools.wraps(run)\n"
        "def ssd(*a, **k):\n"
        "    if k['seed'] == 3: os.kill(os.getpid(), 9)\n"
        "    return run(*a, **k)\n"
        "s.ssd = ssd\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(slow))
    result = sweep(slow / "slow.toml", slow / "out", workers=2)
    (cell,) = result.failed
    assert cell["parameters"]["seed"] == 3
    assert "died 3 times (signal SIGKILL)" in cell["error"]
    assert [c["status"] for c in result.cells].count("done") == 7


def test_ctrl_c_keeps_finished_cells(held: Path) -> None:
    out = held / "out"
    running = start("sweep", held / "slow.toml", "-o", out, "--workers", 2)
    until(lambda: finished(out), "a cell")
    workers = children(running.pid)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=HANG)
    assert running.returncode == 130
    assert "interrupted: " in said
    assert len(said.splitlines()) == 1, said
    assert not any(Path(f"/proc/{w}").exists() for w in workers)
    assert 1 <= len(finished(out)) < 8
    check_complete(out)


def test_a_second_sweep_of_the_same_folder_is_refused(held: Path, nearfar: Run) -> None:
    out = held / "out"
    first = start("sweep", held / "slow.toml", "-o", out, "--workers", 1)
    until(lambda: finished(out), "a cell")
    second = nearfar("sweep", held / "slow.toml", "-o", out)
    refused(second, "another sweep is running here")
    (held / "go").touch()
    _, said = first.communicate(timeout=HANG)
    assert first.returncode == 0, said
    check_complete(out)


@pytest.mark.long("one more kill of a sweep")
def test_a_sweep_killed_repeatedly_can_be_completed(slow: Path, expected: dict[str, bytes]) -> None:
    """The kills fall between start-up and the writing of the dataset."""
    out = slow / "out"
    for step in range(6):
        running = start("sweep", slow / "slow.toml", "-o", out, "--workers", 2)
        time.sleep(0.3 + 0.15 * step)
        running.kill()
        running.communicate(timeout=HANG)
        if (out / "cells").exists():
            for path in (out / "cells").glob("[!.]*.parquet"):
                assert pq.read_table(path).num_rows == 1
    sweep(slow / "slow.toml", out, workers=2)
    assert bytes_of(out) == expected
    assert not list(out.rglob(".*.partial"))


def test_a_full_disk_is_one_line(slow: Path, nearfar: Run) -> None:
    """The folder of cells is a file system of 64 KiB."""
    out = slow / "out"
    (out / "cells").mkdir(parents=True)
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(out / "cells")]
    (out / "run.json").write_text(json.dumps({"study": "sweep"}), encoding="utf-8")
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        done = nearfar("sweep", slow / "slow.toml", "-o", out, "--workers", 2)
        assert not list((out / "cells").glob(".*.partial"))
        whole_cells = list((out / "cells").glob("*.parquet"))
    finally:
        subprocess.run(["umount", str(out / "cells")], check=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
    assert len(whole_cells) < 8


# --- Dask


def test_a_killed_dask_worker_loses_no_cell(held: Path, expected: dict[str, bytes]) -> None:
    out = held / "out"
    with cluster(held) as (file, _, workers):
        both_there(file)
        running = start("sweep", held / "slow.toml", "-o", out, "--dask", file)
        until(lambda: len(finished(out)) >= 2, "two cells")
        workers[0].kill()
        (held / "go").touch()
        printed, said = running.communicate(timeout=HANG)
        assert running.returncode == 0, said
        assert "8 cells, 8 done" in printed and "8 cells run now" in printed
        assert bytes_of(out) == expected
        again = sweep(held / "slow.toml", out, dask=str(file))
        assert again.ran == 0


@pytest.mark.long("one more kill of a sweep")
def test_a_killed_dask_scheduler_ends_the_sweep(held: Path, expected: dict[str, bytes]) -> None:
    out = held / "out"
    with cluster(held) as (file, scheduler, _):
        both_there(file)
        running = start("sweep", held / "slow.toml", "-o", out, "--dask", file)
        until(lambda: len(finished(out)) >= 2, "two cells")
        scheduler.kill()
        _, said = running.communicate(timeout=HANG)
        assert running.returncode == 3, said
        assert "scheduler went away" in said
        assert len(said.splitlines()) == 1, said
        assert "Traceback" not in said
    (held / "go").touch()
    kept = len(finished(out))
    check_complete(out)
    result = sweep(held / "slow.toml", out, workers=2)
    assert result.ran <= 8 - kept
    assert bytes_of(out) == expected


@pytest.mark.long("one more kill of a sweep")
def test_a_killed_dask_sweep_can_be_continued(held: Path, expected: dict[str, bytes]) -> None:
    out = held / "out"
    with cluster(held) as (file, _, _):
        both_there(file)
        running = start("sweep", held / "slow.toml", "-o", out, "--dask", file)
        until(lambda: finished(out), "a cell")
        running.kill()
        running.communicate(timeout=HANG)
        assert 1 <= len(finished(out)) < 8
        (held / "go").touch()
        assert not sweep(held / "slow.toml", out, dask=str(file)).failed
        assert bytes_of(out) == expected


def test_a_missing_scheduler_is_one_line(slow: Path, nearfar: Run) -> None:
    done = nearfar("sweep", slow / "slow.toml", "-o", slow / "out", "--dask", "tcp://127.0.0.1:1")
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "no scheduler there" in done.stderr
