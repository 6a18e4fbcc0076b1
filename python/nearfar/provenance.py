"""How a result was made: one record for every study, kept as ``run.json``.

It holds what a run depends on and no time of day: the same inputs give the same record.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

from nearfar import machine as machines
from nearfar.machine import Machine
from nearfar.schema import Option, command_line
from nearfar.strict import read_trace


class Run(TypedDict, total=False):
    """How a result was made. A study adds what is its own."""

    study: str
    question: str
    command: str
    trace: str
    trace_json_sha256: str
    traced: str
    trace_complete: bool
    sampled_trace: bool
    machine: str
    machine_description: dict[str, Any]
    #: In place of that, where several machines were compared; and the latency of their DRAM.
    machines: dict[str, dict[str, Any]]
    dram_ns: dict[str, float]
    options: dict[str, Any]
    view: str
    version: str


def provenance(
    study: str,
    *,
    arguments: Sequence[str | PathLike[str]] = (),
    options: Iterable[Option] = (),
    values: Mapping[str, Any],
    trace: Path | None = None,
    machine: Machine | Sequence[Machine] | None = None,
    question: str = "",
    view: str | None = None,
) -> Run:
    """The record of a run.

    Args:
        study: its name.
        arguments: of the command, without a flag.
        options: what it may be given.
        values: what it was given, or the defaults: as the engine read them.
        trace: the trace that was studied.
        machine: the machine as it was used, with every override; or those that were compared.
        question: which of several questions of one study was asked.
        view: which references of the trace there were, in words.
    """
    from nearfar import _engine

    given = {name: value for name, value in values.items() if name != "machine"}
    words = [*arguments, *machines.words(machine)]
    run: Run = {"study": study}
    if question:
        run["question"] = question
    run["command"] = command_line(f"{study} {question}".strip(), words, options, given)
    if trace is not None:
        run |= _of_trace(trace)
    if isinstance(machine, machines.Machine):
        run |= {"machine": machine.name, "machine_description": machine.to_dict()}
    elif machine is not None:
        run["machine"] = ",".join(one.name for one in machine)
        run["machines"] = {one.name: one.to_dict() for one in machine}
        run["dram_ns"] = {one.name: one.access_times().dram_ns for one in machine}
    run["options"] = given
    if view is not None:
        run["view"] = view
    run["version"] = _engine.__version__
    return run


def _of_trace(trace: Path) -> Run:
    text = read_trace(trace)
    info = json.loads(text)
    source = info["source"]
    return {
        "trace": str(trace),
        "trace_json_sha256": hashlib.sha256(text).hexdigest(),
        "traced": shlex.join(source["command"]) or source["detail"],
        "trace_complete": info["complete"],
        "sampled_trace": source.get("sampled", False),
    }
