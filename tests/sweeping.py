"""Helpers of the sweep tests: a small sweep, the bytes of its dataset, and a Dask cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from conftest import DATA, HANG, until
from nearfar.declared import names
from nearfar.sweep import SweepResult, cell, local, sweep

#: Three replacement algorithms, and their list in ``study.toml``.
REPLACEMENTS = [name for name, _ in names.REPLACEMENT][:3]
LISTED = json.dumps(REPLACEMENTS)

GRID = f"""
study = "paging"

[grid]
trace = ["gzip.trace", "sqlite.trace"]
replacement = {LISTED}

[options]
machine = "optane-ssd"
memory = "50%,100%"
page_sizes = "4K,32K"
"""


def lay_out(folder: Path) -> Path:
    """Put two captures and a ``study.toml`` into the folder."""
    for name in ("gzip", "sqlite"):
        shutil.copytree(DATA / "captures" / f"{name}.trace", folder / f"{name}.trace")
    (folder / "study.toml").write_text(GRID, encoding="utf-8")
    return folder


def sweep_here(*words: Any, **options: Any) -> SweepResult:
    """A sweep without worker processes, whose start takes longer than the cells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "run", lambda jobs, _: (cell.run(job) for job in jobs))
        return sweep(*words, **options)


def swept(folder: Path) -> SweepResult:
    return sweep_here(lay_out(folder) / "study.toml", folder / "made")


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every part of a sweep's dataset."""
    return {part.name: part.read_bytes() for part in sorted((folder / "dataset").iterdir())}


def stand_still(
    folder: Path, monkeypatch: pytest.MonkeyPatch, module: str, function: str, files: str, most: int
) -> None:
    """Make ``function`` wait in commands while over ``most`` ``files`` exist and no file ``go``."""
    (folder / "sitecustomize.py").write_text(
        f"import functools, pathlib, time, {module} as m\n"
        f"run, here = m.{function}, pathlib.Path(__file__).parent\n"
        "@functools.wraps(run)\n"
        "def held(*a, **k):\n"
        f"    while len([*here.glob({files!r})]) > {most} and not (here / 'go').exists():\n"
        "        time.sleep(0.01)\n"
        "    return run(*a, **k)\n"
        f"m.{function} = held\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))


def start(*words: object) -> subprocess.Popen[str]:
    code = "from nearfar.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def cluster(
    folder: Path,
) -> Iterator[tuple[Path, subprocess.Popen[bytes], list[Any]]]:
    """A Dask scheduler and two single-threaded workers: scheduler file and processes."""
    pytest.importorskip("distributed")
    file = folder / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    own = ["--scheduler-file", str(file)]
    scheduler = subprocess.Popen(
        [*dask, *own, "--host", "127.0.0.1", "--port", "0", "--no-dashboard"], **quiet
    )
    running: list[Any] = []
    try:
        until(file.exists, "a scheduler")
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", *own]
        worker += ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
        running += [subprocess.Popen([*worker, "--name", str(name)], **quiet) for name in range(2)]
        yield file, scheduler, running
    finally:
        for process in (*running, scheduler):
            process.kill()
            process.wait()


def both_there(file: Path) -> None:
    """Wait for both workers of :func:`cluster`."""
    import distributed

    with distributed.Client(scheduler_file=str(file), set_as_default=False) as client:
        client.wait_for_workers(2, timeout=HANG)
