"""Read folders of results: of any study, or of a sweep.

>>> run = open_run("app.run")                       # doctest: +SKIP
>>> run.study.name, run.columns.metrics             # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nearfar import studies
from nearfar.errors import NearfarError
from nearfar.result import RUN, FolderResult, Result, read_table
from nearfar.schema import Rows
from nearfar.strict import read_json
from nearfar.studies import Study
from nearfar.sweep import SweepResult, load


@dataclass(frozen=True)
class Run:
    """A folder of results.

    Attributes:
        path: the folder.
        study: the study, or that of the sweep.
        result: the result of the study, or the sweep.
        columns: the columns of the result's table.
    """

    path: Path
    study: Study
    result: Result
    columns: Rows

    @property
    def is_sweep(self) -> bool:
        """Whether it is a sweep."""
        return isinstance(self.result, SweepResult)

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.resolve().name


def open_run(folder: str | Path) -> Run:
    """Read a folder that ``-o`` of a study, or a sweep, has written.

    Raises:
        NearfarError: there is no such folder, or it is something else or damaged.
    """
    import pyarrow

    path = Path(folder)
    if not (path / RUN).exists():
        raise NearfarError(
            f"{path}: not a run folder (no run.json); name a folder that a study's -o or "
            "`nearfar sweep` made"
        )
    try:
        run = read_json(path / RUN)
    except ValueError:
        run = None
    if not isinstance(run, dict):
        raise NearfarError(f"{path / RUN}: is damaged; run the study again")
    if run.get("study") == "sweep":
        sweep = load(path)
        return Run(path, sweep.study, sweep, sweep.columns)
    try:
        study = studies.of_run(run)
    except NearfarError as error:
        raise NearfarError(f"{path / RUN}: {error}") from None
    files = [file for file in path.glob("*.parquet") if file.is_file()]
    try:
        tables = {file.stem: read_table(file) for file in files}
        result: FolderResult = study.restore(run, tables)
    except (pyarrow.ArrowException, OSError) as error:
        line = (str(error).splitlines() or [""])[0]
        raise NearfarError(f"{path}: is damaged: {line}; run the study again") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise NearfarError(
            f"{path}: lacks {error}; it was written by another version: run the study again"
        ) from None
    return Run(path, study, result, study.columns)
