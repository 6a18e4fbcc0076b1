"""Several runs of one study as one result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nearfar.diff import Row, Value, flat
from nearfar.errors import NearfarError
from nearfar.result import Result
from nearfar.run_folder import Run, open_run


@dataclass(frozen=True)
class Runs(Result):
    """Several runs of one study.

    Attributes:
        runs: the runs.
        rows: the rows of all runs, with the additional columns ``run`` and ``program``.
        keys: columns that identify a row.
    """

    page = "nearfar.report.html.rows:RowsPage"

    runs: list[Run]
    rows: list[Row]
    keys: list[str]

    def to_dict(self) -> Mapping[str, object]:
        """The machines, and the command of each run."""
        machines = dict.fromkeys(
            str(r["machine"]) for r in map(record, self.runs) if "machine" in r
        )
        commands = {run.name: record(run).get("command", "") for run in self.runs}
        return {"machines": list(machines), **commands}


def together(folders: Sequence[str | Path]) -> Runs:
    """Read several runs of one study.

    Raises:
        NearfarError: as :func:`open_run`; runs of different studies.
    """
    runs = [open_run(folder) for folder in folders]
    first = runs[0]
    other = next((run for run in runs if run.study.name != first.study.name), None)
    if other is not None:
        raise NearfarError(
            f"{first.path} is of {first.study.name}, {other.path} of {other.study.name}; give runs "
            "of one study"
        )
    named = len({run.name for run in runs}) == len(runs)
    rows: list[Row] = []
    keys: dict[str, None] = {"program": None, "run": None}
    views = {str(record(run).get("options", {}).get("view", "")) for run in runs}
    for run in runs:
        found, keys_of_run = flat(run)
        # A key that is constant within every run describes the run, not a row.
        keys |= dict.fromkeys(key for key in keys_of_run if len({row[key] for row in found}) > 1)
        program = _program(run)
        if len(views) > 1:  # Rows of different views must not be compared.
            program += f", view {record(run)['options'].get('view')}"
        of_run: dict[str, Value] = {"program": program, "run": run.name if named else str(run.path)}
        rows += [{**row, **of_run} for row in found]
    return Runs(runs, rows, list(keys))


def record(run: Run) -> Mapping[str, Any]:
    """How a run was made: trace, machine, options, command."""
    record: Mapping[str, Any] = getattr(run.result, "run", {})
    return record


def _program(run: Run) -> str:
    """The program or workload of a run; empty if it has none."""
    made_from = record(run)
    words = made_from.get("program") or made_from.get("trace") or made_from.get("workload") or ""
    return shlex.join(words) if isinstance(words, list) else Path(str(words)).name
