"""Answers of ``watch`` for monitoring: detects changes; formats JSON lines, Prometheus metrics."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nearfar.declared import watch as declared
from nearfar.errors import NearfarError
from nearfar.output import check_output, write_whole
from nearfar.size.limits import WORTH

if TYPE_CHECKING:
    from nearfar.watch.target import Target

_PREFIX: Final = "nearfar_watch_"
#: Suffixes of metrics by the unit of the column. Columns in bytes already end in ``_bytes``.
_UNITS: Final = {"share": "_ratio", "a second": "_per_second"}
_ANSWERED: Final = f"{_PREFIX}answer_timestamp_seconds"


def has_changed(now: declared.Row, before: declared.Row | None) -> bool:
    """Whether an answer differs from an earlier one by more than the earlier one's error.

    That is if its memory is outside the earlier interval and differs by more than 5 %, or its peak
    is above the earlier MemoryMax.
    """
    if before is None:
        return True
    memory = now["memory_bytes"]
    differs = abs(memory - before["memory_bytes"]) > WORTH * before["memory_bytes"]
    outside = not before["low_bytes"] <= memory <= before["high_end_bytes"]
    limit = before["max_bytes"]
    return (outside and differs) or (limit is not None and now["peak_bytes"] > limit)


def json_line(row: declared.Row, at: float, changed: bool) -> str:
    """An answer as a line of JSON: the time in UTC, whether it has changed, and the columns."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
    return json.dumps({"time": when, "changed": changed, **row}, allow_nan=False)


def metrics(row: declared.Row, target: Target, at: float) -> str:
    """An answer in the text format of Prometheus: a gauge for each column that is a number."""
    labels = {"program": row["vm"], "target": target.words[-1]}
    lines: list[str] = []

    def add(name: str, what: str, value: object, **more: str | None) -> None:
        text = ",".join(f'{key}="{_escaped(one or "")}"' for key, one in {**labels, **more}.items())
        lines.append(f"# HELP {name} {what}\n# TYPE {name} gauge\n{name}{{{text}}} {value}\n")

    add(_ANSWERED, "When the answer was found.", f"{at:.3f}")
    about = {"method": row["method"], "swap": row["storage"], "machine": row["machine"]}
    add(f"{_PREFIX}info", "How the answer was found.", 1, **about)
    for column in declared.ROWS.columns:
        value = row[column.name]  # type: ignore[literal-required]
        if column.arrow != "string" and value is not None:
            name = "observed_seconds" if column.name == "seconds" else column.name
            what = column.what.replace("\\", "\\\\")
            add(f"{_PREFIX}{name}{_UNITS.get(column.unit, '')}", what, value)
    return "".join(lines)


def check_metrics(path: Path, force: bool) -> None:
    """Refuse, before the work, to replace a file that :func:`write_metrics` has not written."""
    if path.exists() and not force and not _is_ours(path):
        raise NearfarError(
            f"--prometheus {path}: exists, and was not written by `nearfar watch`; choose "
            f"another name, or "
            "replace it with --force"
        )
    check_output(path, force=True)


def write_metrics(path: Path, row: declared.Row, target: Target, at: float) -> None:
    """Write the metrics to a file, atomically."""
    write_whole(path, metrics(row, target, at), force=True)


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(100).startswith(f"# HELP {_ANSWERED} ".encode())
    except OSError:
        return False


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
