"""``sweep``: a study over a grid, cell by cell, finished cells are never lost or run again.

``study.toml`` (:mod:`nearfar.sweep.plan`) names the study and the grid. Cells run in processes of
this machine (:mod:`nearfar.sweep.local`) or on a Dask cluster (:mod:`nearfar.sweep.cluster`), and
each keeps its own result (:mod:`nearfar.sweep.cell`). One that takes long may be split into parts
that run apart (:mod:`nearfar.sweep.split`). docs/sweep.md has the whole of it.

>>> found = sweep("study.toml", workers=2)                      # doctest: +SKIP
>>> found.to_polars().group_by("replacement").len()             # doctest: +SKIP
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Unpack, cast

from nearfar.declared import sweep as declared
from nearfar.errors import NearfarError
from nearfar.output import check_output, commit, write_whole
from nearfar.result import RUN, Result, read_table
from nearfar.schema import Rows, complete, count, takes
from nearfar.strict import read_json
from nearfar.studies import STUDIES, Study, find
from nearfar.sweep import cell as cells_of
from nearfar.sweep import local
from nearfar.sweep.cell import CellState, Job, Outcome, job_of, outcome_of, parameter_columns
from nearfar.sweep.cluster import Cluster, Scheduler
from nearfar.sweep.plan import Cell, Digests, Plan, SweepRun, read
from nearfar.sweep.split import jobs_of

__all__ = ["Estimate", "SweepResult", "load", "sweep"]


@dataclass(frozen=True)
class Estimate:
    """What is left to do.

    Attributes:
        cells: of the grid; done: finished; failed: of those before, to be tried again.
        seconds: how long the rest takes; None where that is not known.
        basis: what that is estimated from.
    """

    cells: int
    done: int
    failed: int
    seconds: float | None
    basis: str

    def to_dict(self) -> dict[str, float | str | None]:
        """Plain values for JSON."""
        left = self.cells - self.done
        return {
            "cells": self.cells,
            "done": self.done,
            "failed_before": self.failed,
            "to_run": left,
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "basis": self.basis,
        }


@dataclass(frozen=True)
class SweepResult(Result):
    """A sweep as its folder holds it.

    Attributes:
        folder: where it is.
        run: what was asked: study, grid, options, version.
        cells: how each cell went, in the order of the grid: ``key``, ``status`` (``done``,
            ``failed`` or ``missing``), ``rows``, ``error``, ``parameters``.
        ran: cells that this call ran.
        seconds: by key, how long finished cells took.
    """

    shown = "nearfar.report.sweep:sweep"
    chart = "nearfar.report.plots.sweep:draw"

    folder: Path
    run: SweepRun
    cells: list[CellState]
    ran: int = field(compare=False, default=0)
    seconds: dict[str, float] = field(compare=False, default_factory=dict)

    @property
    def study(self) -> Study:
        """The study that ran."""
        return find(self.run["of"])

    @property
    def dataset(self) -> Path:
        """The Parquet dataset: a folder of parts of one schema."""
        return self.folder / "dataset"

    @property
    def result(self) -> Path | None:
        """Of a sweep of one cell, without a grid: its result as its study writes it, once done."""
        there = self.folder / RESULT
        return there if not self.run["grid"] and there.exists() else None

    @property
    def failed(self) -> list[CellState]:
        """The cells that failed."""
        return [cell for cell in self.cells if cell["status"] == "failed"]

    @property
    def varying(self) -> list[str]:
        """Parameters of the grid with more than one value."""
        return [name for name, values in self.run["grid"].items() if len(values) > 1]

    @property
    def columns(self) -> Rows:
        """What the columns mean: the study's, with the parameters of the cells as keys."""
        own = self.study.columns
        plain = {name for key in own.keys for name in ([key] if isinstance(key, str) else key)}
        more = [name for name in parameter_columns(self.study) if name not in plain]
        return Rows(
            keys=(*(name for name in more if name != own.seed), *own.keys),
            metrics=own.metrics,
            seed=own.seed,
        )

    @property
    def table(self) -> Any:
        """All rows of the finished cells as a ``pyarrow.Table``.

        Raises:
            NearfarError: no cell is finished, or a part is damaged.
        """
        import pyarrow

        parts = sorted(part for part in self.dataset.glob("*.parquet") if part.is_file())
        if not parts:
            raise NearfarError(f"{self.folder}: no cell is finished; run the sweep")
        try:
            return pyarrow.concat_tables([read_table(part) for part in parts])
        except (pyarrow.ArrowException, OSError) as error:
            line = (str(error).splitlines() or [""])[0]
            raise NearfarError(f"{self.dataset}: {line}; run the sweep with --force") from None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        rows = self.table.to_pylist() if any(c["status"] == "done" for c in self.cells) else []
        return {"run": self.run, "cells": self.cells, "rows": rows}


Progress = Callable[[int, int, int, float | None], None]


@takes(declared.OPTIONS)
def sweep(
    study: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    **options: Unpack[declared.Options],
) -> SweepResult:
    """Run every cell of a grid that is not finished.

    Args:
        study: path of a ``study.toml``, or a mapping of the same form (paths in it are relative to
            the working directory).
        out: folder of the results; ``NAME.sweep`` by default. One that holds a sweep already goes
            on from there.
        force: run finished cells again.
        progress: called with cells done, failed and in all, and the seconds left (None: unknown).
        {options}

    Returns:
        The sweep; cells that failed are in :attr:`SweepResult.failed`, the others are done.

    Raises:
        NearfarError: bad input, no cluster (exit code 3), or another sweep is running in ``out``.
    """
    asked = _asked(options)
    plan, folder = _plan(study, out)
    with _ours(folder):
        cells, seconds = _prepare(plan, folder, force)
        ran = 0
        if len(seconds) < len(cells):
            ran = _run(plan, folder, cells, seconds, asked, progress)
        return _gather(plan.to_dict(), folder, [cell.key for cell in cells], ran)


@takes(declared.OPTIONS)
def estimate(
    study: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    force: bool = False,
    **options: Unpack[declared.Options],
) -> Estimate:
    """How many cells :func:`sweep` would run and how long that would take; nothing is written.

    Arguments are those of :func:`sweep`; the time is that of ``workers`` processes.
    """
    asked = _asked(options)
    plan, folder = _plan(study, out)
    known = _load_digests(folder)
    cells = list(plan.cells(known))
    outcomes = [outcome_of(cell.key, folder) for cell in cells]
    done = {
        cell.key: found["seconds"]
        for cell, found in zip(cells, outcomes, strict=True)
        if found and found["status"] == "done" and not force
    }
    failed = sum(1 for found in outcomes if found and found["status"] == "failed")
    processes = asked.workers or len(os.sched_getaffinity(0))
    seconds, basis = _left(plan, cells, done, processes, asked.parts)
    return Estimate(len(cells), len(done), failed, seconds, basis)


@dataclass(frozen=True)
class _Asked:
    """Who is to run the cells, checked: the options, and the scheduler where there is one."""

    workers: int
    threads: int
    parts: int
    dask: Scheduler | None


def _asked(options: declared.Options) -> _Asked:
    asked = complete(declared.OPTIONS, options)
    workers = count("--workers", asked["workers"], 0, 4096)
    threads = count("--threads", asked["threads"], 0, 65536)
    parts = count("--parts", asked["parts"], 0, 65536)
    files = (asked["dask_tls_ca"], asked["dask_tls_cert"], asked["dask_tls_key"])
    if any(files) and not (asked["dask"] and all(files)):
        raise NearfarError(
            "--dask-tls-ca, --dask-tls-cert, --dask-tls-key: go together, and with --dask"
        )
    where = asked["dask"]
    return _Asked(workers, threads, parts, None if where is None else Scheduler(where, *files))


def load(folder: str | Path) -> SweepResult:
    """Read a sweep's folder as it is now, finished or not.

    Raises:
        NearfarError: it holds no sweep.
    """
    path = Path(folder)
    run = _run_of(path)
    if run is None:
        raise NearfarError(f"{path}: holds no sweep; name a folder that `nearfar sweep` made")
    keys = run.pop("cells", None)
    known = run.get("of") in STUDIES and isinstance(run.get("grid"), dict)
    if not known or not isinstance(keys, list):
        raise NearfarError(f"{path / 'run.json'}: is damaged; run the sweep again")
    return _gather(run, path, keys, 0)


# --- the folder

_LOCK: Final = ".lock"
#: A link to the whole result of a sweep of one cell.
RESULT: Final = "result"


@contextmanager
def _ours(folder: Path) -> Iterator[None]:
    """Keep other sweeps out of ``folder``, by a lock that the kernel releases in any case."""
    if not folder.exists():
        check_output(folder, force=False, holds=RUN)
    folder.mkdir(parents=True, exist_ok=True)
    if _run_of(folder) is None and any(not at.name.startswith(".") for at in folder.iterdir()):
        raise NearfarError(f"{folder}: exists and holds no sweep; choose another -o")
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NearfarError(
                f"{folder}: another sweep is running here; wait for it or choose another -o"
            ) from None
        yield


def _plan(study: str | Path | Mapping[str, Any], out: str | Path | None) -> tuple[Plan, Path]:
    plan = read(study)
    return plan, Path(f"{plan.name}.sweep" if out is None else out)


def _run_of(folder: Path) -> SweepRun | None:
    try:
        found: Any = read_json(folder / RUN)
    except (NearfarError, ValueError):
        return None
    whole = isinstance(found, dict) and found.get("study") == "sweep"
    return cast("SweepRun", found) if whole else None


def _load_digests(folder: Path) -> Digests:
    try:
        found: Any = read_json(folder / "inputs.json")
    except (NearfarError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _prepare(plan: Plan, folder: Path, force: bool) -> tuple[list[Cell], dict[str, float]]:
    """Lay out the folder; returns the cells and the seconds of the finished ones by key."""
    known = _load_digests(folder)
    cells = list(plan.cells(known))
    # First of all: what makes the folder a sweep's.
    whole = {**plan.to_dict(), "cells": [cell.key for cell in cells]}
    write_whole(folder / "run.json", json.dumps(whole, indent=1) + "\n", force=True)
    for name in ("cells", "dataset"):
        (folder / name).mkdir(exist_ok=True)
        for left in (folder / name).glob(".*.partial"):
            left.unlink(missing_ok=True)
    write_whole(folder / "inputs.json", json.dumps(known, indent=1) + "\n", force=True)
    wanted = {_part(cell.place, cell.key) for cell in cells}
    for part in (folder / "dataset").glob("*.parquet"):
        # A cell of an earlier grid: its result stays in `cells`.
        if force or part.name not in wanted:
            part.unlink()
    (folder / RESULT).unlink(missing_ok=True)
    seconds: dict[str, float] = {}
    for cell in cells:
        if force:
            (folder / "cells" / f"{cell.key}.json").unlink(missing_ok=True)
            _forget_parts(cell.key, folder)
            continue
        found = outcome_of(cell.key, folder)
        there = bool(plan.grid) or (_kept(cell.key, folder) / RUN).is_file()
        if found is not None and found["status"] == "done" and there:
            seconds[cell.key] = found["seconds"]
            _show(plan, cell.place, cell.key, folder)
    return cells, seconds


def _kept(key: str, folder: Path) -> Path:
    """Where the whole result of a cell is, of a sweep of that one."""
    return folder / "cells" / f"{key}.result"


def _forget_parts(key: str, folder: Path) -> None:
    shutil.rmtree(folder / "parts" / key, ignore_errors=True)
    with suppress(OSError):
        (folder / "parts").rmdir()


def _part(place: int, key: str) -> str:
    return f"{place:06d}-{key}.parquet"


def _show(plan: Plan, place: int, key: str, folder: Path) -> None:
    """Make a finished cell a part of the dataset: a second name of its file, or a copy."""
    _forget_parts(key, folder)
    if not plan.grid:
        (folder / RESULT).symlink_to(_kept(key, folder).relative_to(folder))
    part = folder / "dataset" / _part(place, key)
    if part.exists():
        return
    kept = folder / "cells" / f"{key}.parquet"
    try:
        part.hardlink_to(kept)
    except OSError:
        temporary = part.with_name(f".{part.name}.partial")
        shutil.copyfile(kept, temporary)
        commit(temporary, part)


def _gather(run: SweepRun, folder: Path, keys: Sequence[str], ran: int) -> SweepResult:
    cells: list[CellState] = []
    seconds = {}
    for key in keys:
        found = outcome_of(key, folder)
        seconds[key] = 0.0 if found is None else found["seconds"]
        cells.append(
            {
                "key": key,
                "status": "missing" if found is None else found["status"],
                "rows": 0 if found is None else found["rows"],
                "error": None if found is None else found["error"],
                "parameters": {} if found is None else found["parameters"],
            }
        )
    return SweepResult(folder, run, cells, ran, seconds)


# --- running


def _run(
    plan: Plan,
    folder: Path,
    cells: Sequence[Cell],
    seconds: dict[str, float],
    asked: _Asked,
    progress: Progress | None,
) -> int:
    """Run the cells that are not done; returns how many ended."""
    todo = {cell.key: cell for cell in cells if cell.key not in seconds}
    failed = ran = 0
    gone = dict(seconds)
    ending = ExitStack()
    cluster = None if asked.dask is None else Cluster(asked.dask)
    if cluster is not None:
        ending.callback(cluster.close)

    def show() -> None:
        if progress is not None:
            left = _left(plan, cells, gone, processes, parts)[0]
            progress(len(seconds), failed, len(cells), left)

    try:
        cores = len(os.sched_getaffinity(0))
        if cluster is not None:
            processes, each = max(1, cluster.workers()), max(1, asked.threads)
            # As many as keep every worker busy. On one machine the threads of a cell do that, and
            # share what they decode.
            parts = asked.parts or -(-processes // len(todo))
        else:
            parts = asked.parts or 1
            processes = max(1, min(asked.workers or cores, len(todo) * parts))
            each = max(1, (asked.threads or cores) // processes)
        of_cells = [job_of(cell, plan.study, folder, each, not plan.grid) for cell in todo.values()]
        jobs = {job["key"]: jobs_of(job, parts) for job in of_cells}
        waiting = _Waiting(of_cells, jobs)
        listed = [job for of_one in jobs.values() for job in of_one]
        if cluster is None:
            outcomes = local.run(listed, min(processes, len(listed)))
        else:
            outcomes = cluster.run(listed)
        ending.callback(outcomes.close)
        show()
        for outcome in waiting.cells(outcomes):
            ran += 1
            key = outcome["key"]
            gone[key] = outcome["seconds"]
            if outcome["status"] == "done":
                seconds[key] = outcome["seconds"]
                _show(plan, todo[key].place, key, folder)
            else:
                failed += 1
            show()
    except KeyboardInterrupt:
        kept = f"{len(seconds)} of {len(cells)} cells are kept in {folder}"
        raise NearfarError(f"interrupted: {kept}; run it again to go on", 130) from None
    finally:
        ending.close()
    return ran


class _Waiting:
    """Cells of which parts are still to come, and how many."""

    def __init__(self, whole: Sequence[Job], jobs: Mapping[str, Sequence[Job]]) -> None:
        self.whole = {job["key"]: job for job in whole}
        self.parts = {key: len(of_one) for key, of_one in jobs.items()}

    def cells(self, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        """Outcomes of jobs as those of cells, which are made when their last part is there."""
        for key in [key for key, parts in self.parts.items() if parts == 0]:
            yield self._join(key)
        for outcome in outcomes:
            key = outcome["key"]
            if key not in self.parts:
                continue  # another part of the cell has failed
            self.parts[key] -= 1
            if outcome["status"] != "part":
                del self.parts[key]
                yield outcome
            elif not self.parts[key]:
                yield self._join(key)

    def _join(self, key: str) -> Outcome:
        del self.parts[key]
        return cells_of.join(self.whole[key])


def _left(
    plan: Plan, cells: Sequence[Cell], done: Mapping[str, float], processes: int, parts: int
) -> tuple[float | None, str]:
    """Seconds that the cells which are not done take, and what that is estimated from.

    It is estimated from finished cells, in proportion to the records of their traces.
    """
    rest = [cell for cell in cells if cell.key not in done and cell.error is None]
    if not rest:
        return 0.0, "nothing is left to do"
    at_once = min(processes, len(rest) * max(1, parts))
    known = [cell for cell in cells if cell.key in done and cell.error is None]
    if known:
        work = sum(max(cell.records, 1) for cell in known)
        each = sum(done[cell.key] for cell in known) / work
        basis = f"from {len(known)} finished cell{'s' * (len(known) != 1)}"
        return each * sum(max(cell.records, 1) for cell in rest) / at_once, basis
    rate = plan.study.records_per_second
    if rate is None:
        return None, "not known before a cell is finished"
    total = sum(cell.records for cell in rest)
    return total / rate / at_once, f"assumed: {rate / 1e6:g} M records a second a core"
