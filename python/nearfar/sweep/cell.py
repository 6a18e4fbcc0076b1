"""One cell: run it, write its rows and how it went, whole or not at all.

A finished cell is two files of the sweep's folder: ``cells/KEY.parquet``, its rows, and then
``cells/KEY.json``, which says that it is finished. Both are written to a temporary file, flushed to
the device and renamed, so a process killed at any moment leaves a finished cell or none. Any
process that sees the folder may run any cell; two that run the same one write the same bytes.
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
from typing import Any, TypedDict, cast

from nearfar import studies
from nearfar.errors import NearfarError, of_system
from nearfar.output import commit
from nearfar.schema import as_text
from nearfar.strict import read_json
from nearfar.studies import Study
from nearfar.sweep.plan import Cell


class Job(TypedDict):
    """All that a process needs to run a cell; attributes of :class:`Cell` as they are there."""

    folder: str
    key: str
    study: str
    parameters: Mapping[str, Any]
    written: Mapping[str, Any]
    renamed: Mapping[str, str]
    threads: int
    error: str | None


class CellState(TypedDict):
    """How a cell went: ``done``, ``failed`` or ``missing``; ``rows`` of its result."""

    key: str
    status: str
    rows: int
    error: str | None
    parameters: Mapping[str, Any]


class Outcome(CellState):
    """What ``cells/KEY.json`` holds."""

    seconds: float


def job_of(cell: Cell, study: Study, folder: Path, threads: int) -> Job:
    """All that a process needs to run ``cell``, as plain values."""
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
    """Run a cell and keep it; a cell that fails is kept with its one line."""
    import pyarrow.parquet

    study = studies.find(job["study"])
    began = time.monotonic()
    rows, error = 0, job["error"]
    if error is None:
        parameters = dict(job["parameters"])
        if study.threads is not None:
            parameters[study.threads] = job["threads"]
        try:
            table = _table(study, study.run(_tuples(study, parameters)).table, job)
            rows = table.num_rows
            cell = Path(job["folder"]) / "cells" / f"{job['key']}.parquet"
            # Arrow takes no names that are no text.
            with _whole(cell) as temporary, temporary.open("wb") as file:
                pyarrow.parquet.write_table(table, file, compression="zstd")
        except NearfarError as wrong:
            error = _shown(str(wrong), job["renamed"])
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as wrong:  # noqa: BLE001
            # A defect in one cell must not end the others.
            line = (str(wrong).splitlines() or [""])[0]
            error = _shown(f"{type(wrong).__name__}: {line}", job["renamed"])
    outcome: Outcome = {
        "key": job["key"],
        "status": "done" if error is None else "failed",
        "rows": rows,
        "seconds": round(time.monotonic() - began, 3),
        "error": error,
        "parameters": job["written"],
    }
    try:
        keep(outcome, Path(job["folder"]))
    except NearfarError as wrong:
        outcome["status"], outcome["error"] = "failed", str(wrong)
    return outcome


def keep(outcome: Outcome, folder: Path) -> None:
    """Write how a cell went.

    Raises:
        NearfarError: the folder cannot be written to.
    """
    text = json.dumps(outcome, indent=1) + "\n"
    with _whole(folder / "cells" / f"{outcome['key']}.json") as temporary:
        temporary.write_text(text, encoding="utf-8")


def outcome_of(key: str, folder: Path) -> Outcome | None:
    """How a cell went, if it was ever run to its end."""
    try:
        found: Any = read_json(folder / "cells" / f"{key}.json")
    except (NearfarError, ValueError):
        return None
    if not isinstance(found, dict) or not found.keys() >= Outcome.__annotations__.keys():
        return None
    outcome = cast("Outcome", found)
    there = (folder / "cells" / f"{key}.parquet").is_file()
    lost = outcome["status"] == "done" and not there
    return None if lost or outcome["key"] != key else outcome


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Give a file to write, which becomes ``path`` when all is written."""
    # A name that no other process writes to at the same time, on whatever host it is.
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.partial")
    try:
        yield temporary
        commit(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise of_system(error, path) from None


def _tuples(study: Study, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Lists of TOML as tuples where the study asks for those."""
    known = study.parameters()
    return {
        name: tuple(value)
        if name in known and typing.get_origin(known[name].annotation) is tuple
        else value
        for name, value in parameters.items()
    }


def _shown(text: str, renamed: Mapping[str, str]) -> str:
    for path, written in renamed.items():
        text = text.replace(path, written)
    return text


# --- columns


def parameter_columns(study: Study) -> Mapping[str, Any]:
    """Parameters that become columns, with their Arrow types: the same for every cell."""
    return {
        name: _type(one.annotation)
        for name, one in study.parameters().items()
        if name not in study.in_columns
    }


def _table(study: Study, rows: Any, job: Job) -> Any:
    """The rows with the cell's parameters in front, paths as the sweep's file writes them."""
    import pyarrow

    columns: dict[str, Any] = {"cell": pyarrow.array([job["key"]] * len(rows))}
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


def _type(annotation: Any) -> Any:
    import pyarrow

    plain = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
    union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    listed = typing.get_args(annotation) if union else (annotation,)
    kinds = [one for one in listed if one is not type(None)]
    return plain.get(kinds[0], pyarrow.string()) if len(kinds) == 1 else pyarrow.string()


def _value(value: Any, kind: Any) -> Any:
    import pyarrow

    if value is None or kind != pyarrow.string() or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else str(value)
