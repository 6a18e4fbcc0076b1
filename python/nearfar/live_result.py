"""What a run came to as a result like any other: one row, and the record of how it was made."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Final

from nearfar import _engine
from nearfar.declared import run as declared
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult, load
from nearfar.schema import Column, Rows

#: What the engine says of really resident memory.
RESIDENT: Final = ("resident_bytes", "resident_processes", "unmanaged_bytes", "held_bytes")

#: The row of a run; ``make declared`` writes it as ``nearfar.declared.run``.
TABLES: Final = {
    "rows": Rows(
        columns=(
            Column("command", "string", False, "", "Program and arguments."),
            Column("policy", "string", False, "", "Policy."),
            Column("knobs", "string", False, "", "Its knobs that were given."),
            Column("far", "string", False, "", "Far tier."),
            Column("budget_bytes", "int64", False, "bytes", "Fast memory of each process.",
                   "budget"),
            Column("far_size_bytes", "int64", False, "bytes",
                   "Most memory of each in the far tier, before compression.", "far size"),
            Column("far_latency_ns", "int64", False, "ns",
                   "Time that a page took to or from the far tier at least.", "far latency"),
            Column("epf", "string", False, "",
                   "Whose threads slept while their page came from the far tier."),
            Column("seconds", "double", False, "s", "From start to end.", "time"),
            Column("user_seconds", "double", False, "s",
                   "Processor time of the program and its managers.", "user"),
            Column("system_seconds", "double", False, "s", "The same in the kernel.", "system"),
            Column("manager_seconds", "double", False, "s",
                   "Processor time of the managers, which is part of both; without up to 40 ms "
                   "before the end of each.", "manager"),
            Column("exit_code", "int64", False, "",
                   "The program's; 128 + N when signal N ended it."),
            Column("why", "string", True, "", "Why nearfar ended the program, if it did."),
            Column("images", "int64", False, "", "Process images that were managed."),
            Column("fast_bytes", "int64", False, "bytes",
                   "Most fast memory in use at a moment that was looked at.", "fast"),
            Column("far_pages_bytes", "int64", False, "bytes",
                   "Most memory in the far tier, shadows included, before compression.", "far"),
            Column("window_bytes", "int64", False, "bytes",
                   "Most far memory that was let through without a promotion.", "window"),
            Column("far_bytes", "int64", False, "bytes",
                   "Most bytes that the far tier took for it.", "far takes"),
            Column("alone_seconds", "double", True, "s",
                   "How long the program took bare, without nearfar; null unless `--alone` or a "
                   "share as `--fast` had that measured.", "bare"),
            Column("alone_exit_code", "int64", True, "", "Its exit code then."),
            Column("alone_bytes", "int64", True, "bytes",
                   "Most private memory that one of its processes had then.", "bare memory"),
            Column("slowdown", "double", True, "",
                   "How many times as long as bare it took; null if its exit code differs."),
            Column("resident_bytes", "int64", True, "bytes",
                   "Most private memory that was resident, of all processes at a moment that was "
                   "looked at.", "resident"),
            Column("resident_processes", "int64", True, "",
                   "Processes that were managed at that moment."),
            Column("unmanaged_bytes", "int64", True, "bytes",
                   "What of it was in mappings that are not managed.", "not managed"),
            Column("held_bytes", "int64", True, "bytes",
                   "What of it could not be moved: locked, held by I/O, or shared with a child.",
                   "held"),
            *(Column(name, "int64", False, "", what) for name, what in _engine.live_counters()),
        ),
        keys=("command", "policy", "knobs", "far", "budget_bytes", "far_size_bytes",
              "far_latency_ns", "epf"),
        metrics={
            name: "less"
            for name in ("seconds", "user_seconds", "system_seconds", "manager_seconds", "faults",
                         "promotions", "hint_faults", "shadow_faults", "aborts", "window_faults",
                         "far_loads", "far_stores", "fast_bytes", "far_bytes", "slowdown",
                         "resident_bytes")
        },
    ),
}  # fmt: skip


class LiveRun(Run, total=False):
    """How a run was made: what every study says, and what its times depend on besides."""

    program: list[str]
    kernel: str


def record(
    words: Sequence[str],
    options: Mapping[str, Any],
    knobs: Mapping[str, str],
    *,
    alone: bool,
) -> LiveRun:
    """The record of a run of ``words``.

    Args:
        words: program and arguments.
        options: as the engine read them.
        knobs: of the policy.
        alone: whether it was asked to be run bare as well.
    """
    run = provenance("run", options=declared.OPTIONS, values=options)
    if alone:
        run["command"] += " --alone"
        run["options"]["alone"] = True
    for name, value in knobs.items():
        run["command"] += f" --knob {shlex.quote(f'{name}={value}')}"
    run["command"] += f" -- {shlex.join(words)}"
    if knobs:
        run["options"]["knobs"] = dict(knobs)
    return {**run, "program": list(words), "kernel": os.uname().release}


class LiveResult(FolderResult):
    """What :class:`nearfar.live.Outcome` is besides its numbers: a row, JSON, a folder."""

    columns: ClassVar[Rows] = TABLES["rows"]

    run: LiveRun
    counters: dict[str, int]

    @property
    def rows(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The only row."""
        options = self.run["options"]
        knobs = options.get("knobs", {})
        own = {
            "command": shlex.join(self.run["program"]),
            "policy": options["policy"],
            "knobs": ",".join(f"{name}={value}" for name, value in knobs.items()),
            "far": options["far"],
            "epf": options["epf"],
            **self.counters,
        }
        names = [column.name for column in self.columns.columns]
        return [{name: own[name] if name in own else getattr(self, name) for name in names}]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        found: dict[str, Any] = asdict(self)  # type: ignore[call-overload]
        return found

    def view(self) -> Any:
        """What it came to, in lines."""
        return load("rich.text:Text")(str(self))

    @classmethod
    def restore(cls, run: Any, tables: Mapping[str, Any]) -> Any:
        """Read back what :meth:`write` wrote."""
        rows = tables["result"].to_pylist()
        if len(rows) != 1:
            raise KeyError("row")
        row = rows[0]
        program, options = [str(word) for word in run["program"]], dict(run["options"])
        knobs = {str(k): str(v) for k, v in dict(options.get("knobs", {})).items()}
        counters = {name: row.pop(name) for name, _ in _engine.live_counters()}
        # What stands elsewhere too, or follows from the rest; an older run has no slowdown.
        for name in ("command", "policy", "knobs", "far", "epf", "slowdown"):
            row.pop(name, None)
        options |= {name: str(options[name]) for name in ("policy", "far", "epf")}
        options |= {"knobs": knobs} if knobs else {}
        kept = {**run, "program": program, "options": options}
        make: Any = cls
        return make(command=program, options=options, counters=counters, run=kept, **row)

    def _run(self) -> Mapping[str, Any]:
        return self.run
