"""``sweep``: a study over a grid, cell by cell; finished cells are never lost or run again.

``study.toml`` (:mod:`nearfar.sweep.plan`) names the study and the grid. Cells run in processes of
this machine (:mod:`nearfar.sweep.local`) or on a Dask cluster (:mod:`nearfar.sweep.cluster`), and
write their own results (:mod:`nearfar.sweep.cell`). See docs/sweep.md.

>>> result = sweep("study.toml", workers=2)                     # doctest: +SKIP
>>> result.to_polars().group_by("replacement").len()            # doctest: +SKIP
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack, cast

from nearfar.declared import sweep as declared
from nearfar.errors import NearfarError
from nearfar.output import check_output, commit, write_whole
from nearfar.result import RUN, Result, read_table
from nearfar.schema import Rows, complete, count, takes
from nearfar.strict import Json, read_json
from nearfar.studies import STUDIES, Study, find
from nearfar.sweep import local
from nearfar.sweep.cell import CellState, job_of, parameter_columns, read_outcome
from nearfar.sweep.cluster import Cluster
from nearfar.sweep.plan import Cell, Digests, Plan, SweepRun, read

if TYPE_CHECKING:
    import pyarrow

__all__ = ["Estimate", "SweepResult", "load", "sweep"]


@dataclass(frozen=True)
class Estimate:
    """The remaining work of a sweep.

    Attributes:
        cells: cells of the grid.
        done: finished cells.
        failed: cells to try again.
        seconds: estimated time of the unfinished cells; None if unknown.
        basis: what the estimate is based on.
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
    """The state of a sweep.

    Attributes:
        folder: its folder.
        run: study, grid, options, version.
        cells: the state of each cell, in the order of the grid.
        ran: number of cells that this call ran.
        seconds: durations of all cells, by key; 0 if missing.
    """

    shown = "nearfar.report.sweep:sweep"
    page = "nearfar.report.html.rows:RowsPage"
    chart = "nearfar.report.plots.sweep:draw"

    folder: Path
    run: SweepRun
    cells: list[CellState]
    ran: int = field(compare=False, default=0)
    seconds: dict[str, float] = field(compare=False, default_factory=dict)

    @property
    def study(self) -> Study:
        """The study."""
        return find(self.run["of"])

    @property
    def dataset(self) -> Path:
        """The folder of the Parquet dataset."""
        return self.folder / "dataset"

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
        """The study's columns, with the parameters of the cells as further keys."""
        study = self.study.columns
        keys = {name for key in study.keys for name in ([key] if isinstance(key, str) else key)}
        added = [name for name in parameter_columns(self.study) if name not in keys]
        return Rows(
            keys=(*(name for name in added if name != study.seed), *study.keys),
            metrics=study.metrics,
            seed=study.seed,
        )

    @property
    def table(self) -> pyarrow.Table:
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

    def to_dict(self) -> Mapping[str, object]:
        """The sweep as plain values, as ``--format json`` prints it."""
        rows = self.table.to_pylist() if any(c["status"] == "done" for c in self.cells) else []
        return {"run": self.run, "cells": self.cells, "rows": rows}


#: Called with cells done, failed and in total, and seconds left (None: unknown).
Progress = Callable[[int, int, int, float | None], None]


@takes(declared.OPTIONS)
def sweep(
    study: str | Path | Mapping[str, object],
    out: str | Path | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
    **options: Unpack[declared.Options],
) -> SweepResult:
    """Run every unfinished cell of a grid. Failed cells are in :attr:`SweepResult.failed`.

    Args:
        study: path of a ``study.toml``, or a mapping of the same form (paths in it are relative to
            the working directory).
        out: folder of the results; ``NAME.sweep`` by default. A sweep there is continued.
        force: run finished cells again.
        progress: see :data:`Progress`.
        {options}

    Raises:
        NearfarError: bad input, no cluster (exit code 3), or another sweep is running in ``out``.
    """
    values = _checked(options)
    plan, folder = _plan(study, out)
    with _locked(folder):
        cells, seconds = _prepare(plan, folder, force)
        ran = 0
        if len(seconds) < len(cells):
            ran = _run(plan, folder, cells, seconds, values, progress)
        return _gather(plan.to_dict(), folder, [cell.key for cell in cells], ran)


@takes(declared.OPTIONS)
def estimate(
    study: str | Path | Mapping[str, object],
    out: str | Path | None = None,
    *,
    force: bool = False,
    **options: Unpack[declared.Options],
) -> Estimate:
    """How many cells :func:`sweep` would run and how long that would take; writes nothing.

    Arguments are those of :func:`sweep`; the time is that of ``workers`` processes.
    """
    values = _checked(options)
    plan, folder = _plan(study, out)
    known = _load_digests(folder)
    cells = list(plan.cells(known))
    outcomes = [read_outcome(cell.key, folder) for cell in cells]
    done = {
        cell.key: found["seconds"]
        for cell, found in zip(cells, outcomes, strict=True)
        if found and found["status"] == "done" and not force
    }
    failed = sum(1 for found in outcomes if found and found["status"] == "failed")
    processes = values["workers"] or len(os.sched_getaffinity(0))
    seconds, basis = _left(plan, cells, done, processes)
    return Estimate(len(cells), len(done), failed, seconds, basis)


def _checked(options: declared.Options) -> declared.Options:
    values = complete(declared.OPTIONS, options)
    values["workers"] = count("--workers", values["workers"], 0, 4096)
    values["threads"] = count("--threads", values["threads"], 0, 65536)
    return values


def load(folder: str | Path) -> SweepResult:
    """Read the folder of a sweep, finished or not.

    Raises:
        NearfarError: it is not the folder of a sweep.
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


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against other sweeps; the kernel releases the lock if the process dies."""
    if not folder.exists():
        check_output(folder, force=False, holds=RUN)
    folder.mkdir(parents=True, exist_ok=True)
    if _run_of(folder) is None and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise NearfarError(f"{folder}: exists and holds no sweep; choose another -o")
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NearfarError(
                f"{folder}: another sweep is running here; wait for it or choose another -o"
            ) from None
        yield


def _plan(study: str | Path | Mapping[str, object], out: str | Path | None) -> tuple[Plan, Path]:
    plan = read(study)
    return plan, Path(f"{plan.name}.sweep" if out is None else out)


def _run_of(folder: Path) -> SweepRun | None:
    run = cast("SweepRun", _read_dict(folder / RUN))
    return run if run.get("study") == "sweep" else None


def _load_digests(folder: Path) -> Digests:
    return _read_dict(folder / "inputs.json")


def _read_dict(file: Path) -> Json:
    """The object in a JSON file; empty if there is none."""
    try:
        content = read_json(file)
    except (NearfarError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _prepare(plan: Plan, folder: Path, force: bool) -> tuple[list[Cell], dict[str, float]]:
    """Set up the folder; returns the cells, and the durations of finished ones by key."""
    known = _load_digests(folder)
    cells = list(plan.cells(known))
    # First, because this file marks the folder as a sweep.
    run = {**plan.to_dict(), "cells": [cell.key for cell in cells]}
    write_whole(folder / RUN, json.dumps(run, indent=1) + "\n", force=True)
    for name in ("cells", "dataset"):
        (folder / name).mkdir(exist_ok=True)
        for partial in (folder / name).glob(".*.partial"):
            partial.unlink(missing_ok=True)
    write_whole(folder / "inputs.json", json.dumps(known, indent=1) + "\n", force=True)
    wanted = {_part(cell.place, cell.key) for cell in cells}
    for part in (folder / "dataset").glob("*.parquet"):
        # Results of an earlier grid stay in `cells`.
        if force or part.name not in wanted:
            part.unlink()
    seconds: dict[str, float] = {}
    for cell in cells:
        if force:
            (folder / "cells" / f"{cell.key}.json").unlink(missing_ok=True)
            continue
        found = read_outcome(cell.key, folder)
        if found is not None and found["status"] == "done":
            seconds[cell.key] = found["seconds"]
            _publish(cell.place, cell.key, folder)
    return cells, seconds


def _part(place: int, key: str) -> str:
    return f"{place:06d}-{key}.parquet"


def _publish(place: int, key: str, folder: Path) -> None:
    """Add a finished cell to the dataset: a hard link to its file, or a copy."""
    part = folder / "dataset" / _part(place, key)
    if part.exists():
        return
    rows = folder / "cells" / f"{key}.parquet"
    try:
        part.hardlink_to(rows)
    except OSError:
        temporary = part.with_name(f".{part.name}.partial")
        shutil.copyfile(rows, temporary)
        commit(temporary, part)


def _gather(run: SweepRun, folder: Path, keys: Sequence[str], ran: int) -> SweepResult:
    cells: list[CellState] = []
    seconds = {}
    for key in keys:
        found = read_outcome(key, folder)
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
    options: declared.Options,
    progress: Progress | None,
) -> int:
    """Run the unfinished cells; returns how many ended."""
    todo = {cell.key: cell for cell in cells if cell.key not in seconds}
    failed = ran = 0
    ended = dict(seconds)
    stack = ExitStack()
    cluster = None if options["dask"] is None else Cluster(options["dask"])
    if cluster is not None:
        stack.callback(cluster.close)

    def report() -> None:
        if progress is not None:
            left = _left(plan, cells, ended, processes)[0]
            progress(len(seconds), failed, len(cells), left)

    try:
        cores = len(os.sched_getaffinity(0))
        if cluster is not None:
            processes, threads = max(1, cluster.workers()), max(1, options["threads"])
        else:
            processes = max(1, min(options["workers"] or cores, len(todo)))
            threads = max(1, (options["threads"] or cores) // processes)
        jobs = [job_of(cell, plan.study, folder, threads) for cell in todo.values()]
        outcomes = local.run(jobs, processes) if cluster is None else cluster.run(jobs)
        stack.callback(outcomes.close)
        report()
        for outcome in outcomes:
            ran += 1
            key = outcome["key"]
            ended[key] = outcome["seconds"]
            if outcome["status"] == "done":
                seconds[key] = outcome["seconds"]
                _publish(todo[key].place, key, folder)
            else:
                failed += 1
            report()
    except KeyboardInterrupt:
        done = f"{len(seconds)} of {len(cells)} cells are kept in {folder}"
        raise NearfarError(f"interrupted: {done}; run it again to go on", 130) from None
    finally:
        stack.close()
    return ran


def _left(
    plan: Plan, cells: Sequence[Cell], done: Mapping[str, float], processes: int
) -> tuple[float | None, str]:
    """Estimated seconds for the unfinished cells, and the basis of the estimate.

    The estimate is from finished cells, in proportion to the records of their traces.
    """
    rest = [cell for cell in cells if cell.key not in done and cell.error is None]
    if not rest:
        return 0.0, "nothing is left to do"
    at_once = min(processes, len(rest))
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
    return total / rate / at_once, f"assumed: {rate / 1e6:g} M records per second per core"
