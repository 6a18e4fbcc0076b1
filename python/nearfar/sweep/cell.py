"""One cell: run it, write its rows and how it went, whole or not at all.

A finished cell is two files of the sweep's folder: ``cells/KEY.parquet``, its rows, and then
``cells/KEY.json``, which says that it is finished. Both are written to a temporary file, flushed to
the device and renamed, so a process killed at any moment leaves a finished cell or none. Any
process that sees the folder may run any cell; two that run the same one write the same bytes.

A cell may be split (:mod:`nearfar.sweep.split`). A finished part is ``parts/KEY/NAME.json``,
written in the same way, and the sweep makes the cell of its parts when the last is there: the same
bytes.

Of a sweep of one cell, without a grid, the whole result is kept, as its study writes it:
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
from typing import Any, TypedDict, cast

from nearfar import studies
from nearfar.errors import NearfarError, of_system
from nearfar.output import commit
from nearfar.result import FolderResult
from nearfar.schema import as_text
from nearfar.strict import read_json
from nearfar.studies import Study
from nearfar.sweep.plan import Cell


class Job(TypedDict):
    """All that a process needs to run a cell; attributes of :class:`Cell` as they are there.

    ``only`` are the pieces of a part, ``None`` for the whole cell. ``result``: whether its whole
    result is kept.
    """

    folder: str
    key: str
    study: str
    parameters: Mapping[str, Any]
    written: Mapping[str, Any]
    renamed: Mapping[str, str]
    threads: int
    error: str | None
    only: Sequence[int] | None
    result: bool


class CellState(TypedDict):
    """How a cell went: ``done``, ``failed`` or ``missing``; ``rows`` of its result.

    Of a part that is done ``part``.
    """

    key: str
    status: str
    rows: int
    error: str | None
    parameters: Mapping[str, Any]


class Outcome(CellState):
    """What ``cells/KEY.json`` holds."""

    seconds: float


class Part(TypedDict):
    """What ``parts/KEY/NAME.json`` holds: pieces, how long they took, what the study came to."""

    only: list[int]
    seconds: float
    answer: Mapping[str, Any]


def job_of(cell: Cell, study: Study, folder: Path, threads: int, result: bool) -> Job:
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
        "only": None,
        "result": result,
    }


def run(job: Job) -> Outcome:
    """Run a cell, or a part of one, and keep it; a cell that fails is kept with its one line."""
    return _attempt(job, _run_whole if job["only"] is None else _run_part)


def join(job: Job) -> Outcome:
    """Make a cell of its parts, which are all there, and keep it."""
    parts = parts_of(job["key"], Path(job["folder"]))
    given = [(part["only"], part["answer"]) for part in parts]
    seconds = sum(part["seconds"] for part in parts)

    def make(job: Job) -> int:
        study = studies.find(job["study"])
        return _write(job, study.joined(given, seconds, parameters_of(study, job)))

    return _attempt(job, make, seconds)


def _attempt(job: Job, make: Callable[[Job], int], seconds: float = 0.0) -> Outcome:
    """How ``make``, which gives a number of rows, went; the outcome of a cell is kept.

    ``seconds`` were spent on it before.
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
            # A defect in one cell must not end the others.
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
            keep(outcome, Path(job["folder"]))
        except NearfarError as wrong:
            outcome["status"], outcome["error"] = "failed", str(wrong)
    return outcome


def _run_whole(job: Job) -> int:
    study = studies.find(job["study"])
    return _write(job, study.run(parameters_of(study, job)))


def _run_part(job: Job) -> int:
    only = list(job["only"] or ())
    study = studies.find(job["study"])
    began = time.monotonic()
    answer = study.part(only, parameters_of(study, job))
    part: Part = {"only": only, "seconds": time.monotonic() - began, "answer": answer}
    folder = part_file(job).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise of_system(error, folder) from None
    with _whole(part_file(job)) as temporary:
        temporary.write_text(json.dumps(part) + "\n", encoding="utf-8")
    return 0


def parameters_of(study: Study, job: Job) -> Mapping[str, Any]:
    """What the study's function is given."""
    parameters = dict(job["parameters"])
    if study.threads is not None:
        parameters[study.threads] = job["threads"]
    return _tuples(study, parameters)


def _write(job: Job, found: FolderResult) -> int:
    """Keep the rows of a cell; answers how many."""
    import pyarrow.parquet

    cells = Path(job["folder"]) / "cells"
    table = _table(studies.find(job["study"]), found.table, job)
    if job["result"]:
        found.write(cells / f"{job['key']}.result", force=True)
    # Arrow takes no names that are no text.
    with _whole(cells / f"{job['key']}.parquet") as temporary, temporary.open("wb") as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")
    return int(table.num_rows)


def part_file(job: Job) -> Path:
    """Where a part is kept: named by its pieces, of which there may be many."""
    name = hashlib.sha256(json.dumps(job["only"]).encode()).hexdigest()[:16]
    return Path(job["folder"]) / "parts" / job["key"] / f"{name}.json"


def parts_of(key: str, folder: Path) -> list[Part]:
    """The finished parts of a cell, no two of which have a piece in common."""
    found: list[Part] = []
    taken: set[int] = set()
    for file in sorted((folder / "parts" / key).glob("[!.]*.json")):
        try:
            part: Any = read_json(file)
        except (NearfarError, ValueError):
            continue
        whole = isinstance(part, dict) and part.keys() >= Part.__annotations__.keys()
        # Sweeps of more and of fewer parts may have left some that overlap.
        if whole and taken.isdisjoint(part["only"]):
            taken.update(part["only"])
            found.append(cast("Part", part))
    return found


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


def outcome_of_job(job: Job) -> Outcome | None:
    """How a job went, as its worker kept it."""
    if job["only"] is None or not part_file(job).is_file():
        return outcome_of(job["key"], Path(job["folder"]))
    return {
        "key": job["key"],
        "status": "part",
        "rows": 0,
        "seconds": 0.0,
        "error": None,
        "parameters": job["written"],
    }


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
