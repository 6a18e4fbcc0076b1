"""One cell of a sweep: run it, and write its rows and its outcome atomically.

A finished cell is two files in the folder of the sweep: ``cells/KEY.parquet``, its rows, and then
``cells/KEY.json``, its outcome. Both are written to a temporary file, flushed to the device and
renamed, so a killed process leaves a finished cell or none. Any process that sees the folder may
run any cell; two processes that run the same cell write the same rows.
"""

from __future__ import annotations

import json
import os
import time
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from nearfar import studies
from nearfar.errors import NearfarError, of_system
from nearfar.output import commit
from nearfar.result import FolderResult
from nearfar.schema import as_text
from nearfar.strict import read_json
from nearfar.studies import Study
from nearfar.sweep.plan import Cell

if TYPE_CHECKING:
    import pyarrow


class Job(TypedDict):
    """What a worker needs to run a cell; keys as in :class:`Cell`."""

    folder: str
    key: str
    study: str
    parameters: Mapping[str, object]
    written: Mapping[str, object]  # every parameter as in ``study.toml``, or its default
    renamed: Mapping[str, str]
    threads: int
    error: str | None


class CellState(TypedDict):
    """The state of a cell: ``done``, ``failed`` or ``missing``."""

    key: str
    status: str
    rows: int
    error: str | None
    parameters: Mapping[str, object]


class Outcome(CellState):
    """The content of ``cells/KEY.json``."""

    seconds: float


def job_of(cell: Cell, study: Study, folder: Path, threads: int) -> Job:
    """The job that runs ``cell``."""
    return {
        "folder": str(folder.absolute()),
        "key": cell.key,
        "study": study.name,
        "parameters": cell.parameters,
        "written": cell.written,
        "renamed": cell.renamed,
        "threads": threads,
        "error": cell.error,
    }


def run(job: Job) -> Outcome:
    """Run a cell, and write its outcome, even if it fails."""
    began = time.monotonic()
    rows, error = 0, job["error"]
    if error is None:
        try:
            study = studies.find(job["study"])
            rows = _write(job, study.function(**parameters_of(study, job)))
        except NearfarError as wrong:
            error = _as_written(str(wrong), job["renamed"])
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as wrong:  # noqa: BLE001
            # A bug in one cell must not end the others.
            line = (str(wrong).splitlines() or [""])[0]
            error = _as_written(f"{type(wrong).__name__}: {line}", job["renamed"])
    outcome = outcome_of(job, error, time.monotonic() - began, rows)
    try:
        write_outcome(outcome, Path(job["folder"]))
    except NearfarError as wrong:
        outcome["status"], outcome["error"] = "failed", str(wrong)
    return outcome


def parameters_of(study: Study, job: Job) -> dict[str, object]:
    """The arguments of the study's function: lists of TOML are tuples if it declares tuples."""
    known = study.parameters()
    parameters = {
        name: tuple(value)
        if isinstance(value, list)
        and name in known
        and typing.get_origin(known[name].annotation) is tuple
        else value
        for name, value in job["parameters"].items()
    }
    return parameters | ({study.threads: job["threads"]} if study.threads is not None else {})


def _write(job: Job, result: FolderResult) -> int:
    """Write the rows of a cell; returns their number."""
    import pyarrow.parquet

    cells = Path(job["folder"]) / "cells"
    table = _table(studies.find(job["study"]), result.table, job)
    # Arrow opens no path that is not UTF-8.
    with _atomic(cells / f"{job['key']}.parquet") as temporary, temporary.open("wb") as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")
    return int(table.num_rows)


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write the outcome of a cell.

    Raises:
        NearfarError: the folder is not writable.
    """
    text = json.dumps(outcome, indent=1) + "\n"
    with _atomic(folder / "cells" / f"{outcome['key']}.json") as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_outcome(key: str, folder: Path) -> Outcome | None:
    """The outcome of a cell, done or failed; None if it has none, or its rows are lost."""
    try:
        outcome: Outcome = read_json(folder / "cells" / f"{key}.json")
    except (NearfarError, ValueError):
        return None
    if not isinstance(outcome, dict) or not outcome.keys() >= Outcome.__annotations__.keys():
        return None
    has_rows = (folder / "cells" / f"{key}.parquet").is_file()
    is_lost = outcome["status"] == "done" and not has_rows
    return None if is_lost or outcome["key"] != key else outcome


def outcome_of(job: Job, error: str | None, seconds: float = 0.0, rows: int = 0) -> Outcome:
    """The outcome of a job, which failed if there is an ``error``."""
    return {
        "key": job["key"],
        "status": "failed" if error is not None else "done",
        "rows": rows,
        "seconds": round(seconds, 3),
        "error": error,
        "parameters": job["written"],
    }


@contextmanager
def _atomic(path: Path) -> Iterator[Path]:
    """A temporary file to write, which is renamed to ``path`` at the end of the block."""
    # The name is unique among processes of all hosts.
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.partial")
    try:
        yield temporary
        commit(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise of_system(error, path) from None


def _as_written(text: str, renamed: Mapping[str, str]) -> str:
    """A message with the paths as in ``study.toml``."""
    for path, written in renamed.items():
        text = text.replace(path, written)
    return text


# --- columns


def parameter_columns(study: Study) -> Mapping[str, pyarrow.DataType]:
    """The types of the parameters that are added as columns, the same for all cells."""
    return {
        name: _type(parameter.annotation)
        for name, parameter in study.parameters().items()
        if name not in study.in_columns
    }


def _table(study: Study, rows: pyarrow.Table, job: Job) -> pyarrow.Table:
    """The rows, after columns of the cell's key and parameters; paths are as in ``study.toml``."""
    import pyarrow

    columns = {"cell": pyarrow.array([job["key"]] * len(rows))}
    for name, kind in parameter_columns(study).items():
        if name not in rows.column_names:
            value = as_text(_value(job["written"].get(name), kind))
            columns[name] = pyarrow.array([value] * len(rows), type=kind)
    renamed = job["renamed"]
    for name in rows.column_names:
        column = rows[name]
        if renamed and pyarrow.types.is_string(column.type):
            texts = [renamed.get(text, text) for text in column.to_pylist()]
            column = pyarrow.array(texts, type=column.type)
        columns[name] = column
    return pyarrow.table(columns)


def _type(annotation: object) -> pyarrow.DataType:
    import pyarrow

    plain = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    listed = typing.get_args(annotation) if union else (annotation,)
    kinds = [kind for kind in listed if kind is not type(None)]
    return plain.get(kinds[0], pyarrow.string()) if len(kinds) == 1 else pyarrow.string()


def _value(value: object, kind: pyarrow.DataType) -> object:
    """A parameter as its column has it: lists and mappings as text."""
    import pyarrow

    if value is None or kind != pyarrow.string() or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else str(value)
