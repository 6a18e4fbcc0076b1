"""One cell of a sweep: run it, and write its rows and its outcome atomically.

A finished cell is two files in the folder of the sweep: ``cells/KEY.parquet``, its rows, and then
``cells/KEY.json``, its outcome. Both are written to a temporary file, flushed to the device and
renamed, so a killed process leaves a finished cell or none. Any process that sees the folder may
run any cell; two processes that run the same cell write the same bytes.

A cell may be split (:mod:`nearfar.sweep.split`). A finished part is ``parts/KEY/NAME.json``. After
the last part, the sweep joins them to the same bytes as an unsplit cell.

A sweep without a grid has one cell; its full result, as the study writes it, is
``cells/KEY.result``.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """Everything that a worker needs to run a cell; see :class:`Cell`.

    ``only``: the pieces of a part; None for the whole cell. ``result``: whether to write the full
    result.
    """

    folder: str
    key: str
    study: str
    parameters: Mapping[str, object]
    written: Mapping[str, object]
    renamed: Mapping[str, str]
    threads: int
    error: str | None
    only: Sequence[int] | None
    result: bool


class CellState(TypedDict):
    """The state of a cell: ``done``, ``failed`` or ``missing`` (``part``: a finished part)."""

    key: str
    status: str
    rows: int
    error: str | None
    parameters: Mapping[str, object]


class Outcome(CellState):
    """The content of ``cells/KEY.json``."""

    seconds: float


class Part(TypedDict):
    """The content of ``parts/KEY/NAME.json``: the pieces, and the study's result for them."""

    only: list[int]
    seconds: float
    answer: Mapping[str, object]


def job_of(cell: Cell, study: Study, folder: Path, threads: int, result: bool) -> Job:
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
        "only": None,
        "result": result,
    }


def run(job: Job) -> Outcome:
    """Run a cell or a part of one, and write its outcome, even if it fails."""
    return _attempt(job, _run_whole if job["only"] is None else _run_part)


def join(job: Job) -> Outcome:
    """Make a cell from its parts, which are all finished."""
    parts = parts_of(job["key"], Path(job["folder"]))
    answers = [(part["only"], part["answer"]) for part in parts]
    seconds = sum(part["seconds"] for part in parts)

    def make(job: Job) -> int:
        study = studies.find(job["study"])
        return _write(job, study.module.joined(answers, seconds, **parameters_of(study, job)))

    return _attempt(job, make, seconds)


def _attempt(job: Job, make: Callable[[Job], int], seconds: float = 0.0) -> Outcome:
    """The outcome of ``make``, which returns a number of rows; written to disk unless of a part.

    ``seconds`` is time that was spent before.
    """
    began = time.monotonic() - seconds
    rows, error = 0, job["error"]
    if error is None:
        try:
            rows = make(job)
        except NearfarError as wrong:
            error = _shown(str(wrong), job["renamed"])
        except (KeyboardInterrupt, SystemExit):
            raise
        except Exception as wrong:  # noqa: BLE001
            # A bug that shows in one cell must not end the others.
            line = (str(wrong).splitlines() or [""])[0]
            error = _shown(f"{type(wrong).__name__}: {line}", job["renamed"])
    outcome: Outcome = {
        "key": job["key"],
        "status": "failed" if error is not None else "done" if job["only"] is None else "part",
        "rows": rows,
        "seconds": round(time.monotonic() - began, 3),
        "error": error,
        "parameters": job["written"],
    }
    if outcome["status"] != "part":
        try:
            write_outcome(outcome, Path(job["folder"]))
        except NearfarError as wrong:
            outcome["status"], outcome["error"] = "failed", str(wrong)
    return outcome


def _run_whole(job: Job) -> int:
    study = studies.find(job["study"])
    return _write(job, study.function(**parameters_of(study, job)))


def _run_part(job: Job) -> int:
    only = list(job["only"] or ())
    study = studies.find(job["study"])
    began = time.monotonic()
    answer: Mapping[str, object] = study.module.part(only, **parameters_of(study, job))
    part: Part = {"only": only, "seconds": time.monotonic() - began, "answer": answer}
    folder = part_file(job).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise of_system(error, folder) from None
    with _whole(part_file(job)) as temporary:
        temporary.write_text(json.dumps(part) + "\n", encoding="utf-8")
    return 0


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
    if job["result"]:
        result.write(cells / f"{job['key']}.result", force=True)
    # Arrow opens no path that is not UTF-8.
    with _whole(cells / f"{job['key']}.parquet") as temporary, temporary.open("wb") as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")
    return int(table.num_rows)


def part_file(job: Job) -> Path:
    """The file of a part, named by a hash of its pieces."""
    name = hashlib.sha256(json.dumps(job["only"]).encode()).hexdigest()[:16]
    return Path(job["folder"]) / "parts" / job["key"] / f"{name}.json"


def parts_of(key: str, folder: Path) -> list[Part]:
    """The finished parts of a cell, without a common piece."""
    parts: list[Part] = []
    taken: set[int] = set()
    for file in sorted((folder / "parts" / key).glob("[!.]*.json")):
        try:
            part: Part = read_json(file)
        except (NearfarError, ValueError):
            continue
        whole = isinstance(part, dict) and part.keys() >= Part.__annotations__.keys()
        # Sweeps with other numbers of parts may have left overlapping ones.
        if whole and taken.isdisjoint(part["only"]):
            taken.update(part["only"])
            parts.append(part)
    return parts


def write_outcome(outcome: Outcome, folder: Path) -> None:
    """Write the outcome of a cell.

    Raises:
        NearfarError: the folder is not writable.
    """
    text = json.dumps(outcome, indent=1) + "\n"
    with _whole(folder / "cells" / f"{outcome['key']}.json") as temporary:
        temporary.write_text(text, encoding="utf-8")


def outcome_of(key: str, folder: Path) -> Outcome | None:
    """The outcome of a cell; None if it has not finished."""
    try:
        outcome: Outcome = read_json(folder / "cells" / f"{key}.json")
    except (NearfarError, ValueError):
        return None
    if not isinstance(outcome, dict) or not outcome.keys() >= Outcome.__annotations__.keys():
        return None
    has_rows = (folder / "cells" / f"{key}.parquet").is_file()
    lost = outcome["status"] == "done" and not has_rows
    return None if lost or outcome["key"] != key else outcome


def outcome_of_job(job: Job) -> Outcome | None:
    """The outcome that the worker of a job has written."""
    if job["only"] is None or not part_file(job).is_file():
        return outcome_of(job["key"], Path(job["folder"]))
    return outcome_without_rows(job, "part")


def outcome_without_rows(
    job: Job, status: str, error: str | None = None, seconds: float = 0.0
) -> Outcome:
    """An outcome for a job that a worker did not report itself."""
    return {
        "key": job["key"],
        "status": status,
        "rows": 0,
        "seconds": seconds,
        "error": error,
        "parameters": job["written"],
    }


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A temporary file to write, which is then renamed to ``path``."""
    # The name is unique among processes of all hosts.
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}-{os.getpid()}.partial")
    try:
        yield temporary
        commit(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise of_system(error, path) from None


def _shown(text: str, renamed: Mapping[str, str]) -> str:
    for path, written in renamed.items():
        text = text.replace(path, written)
    return text


# --- columns


def parameter_columns(study: Study) -> Mapping[str, pyarrow.DataType]:
    """The parameters that are columns, with their types; equal for all cells."""
    return {
        name: _type(parameter.annotation)
        for name, parameter in study.parameters().items()
        if name not in study.in_columns
    }


def _table(study: Study, rows: pyarrow.Table, job: Job) -> pyarrow.Table:
    """The rows, preceded by the cell's parameters; paths are as in the sweep's file."""
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
    """A parameter as a column has it: lists and tables as text."""
    import pyarrow

    if value is None or kind != pyarrow.string() or isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return json.dumps(value, sort_keys=True) if isinstance(value, Mapping) else str(value)
