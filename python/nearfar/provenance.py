"""The record of a run, written to ``run.json``: everything that its result depends on.

It has no time of day, so equal inputs give equal records.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TypedDict

from nearfar import machine as machines
from nearfar.machine import Machine
from nearfar.schema import Option, command_line
from nearfar.strict import Json, read_trace


class Run(TypedDict, total=False):
    """The record of a run; studies add keys."""

    study: str
    question: str
    command: str
    trace: str
    trace_json_sha256: str
    #: The captured command, or another description of the trace's source.
    traced: str
    trace_complete: bool
    #: Whether the trace holds a sample of the references, by perf.
    sampled_trace: bool
    #: The share of the program's pages that the trace holds; absent if it holds all.
    sampled_pages: float
    #: A process of the program switches huge pages off for itself; absent if none does.
    thp_disabled: bool
    machine: str
    machine_description: Json
    #: If several machines were compared, instead of ``machine_description``: their descriptions
    #: and DRAM latencies.
    machines: dict[str, Json]
    dram_ns: dict[str, float]
    options: Json
    view: str
    version: str


def provenance(
    study: str,
    *,
    arguments: Sequence[str | PathLike[str]] = (),
    options: Iterable[Option] = (),
    values: Mapping[str, object],
    trace: Path | None = None,
    machine: Machine | Sequence[Machine] | None = None,
    question: str = "",
    view: str | None = None,
) -> Run:
    """The record of a run.

    Args:
        study: the name of the study.
        arguments: positional arguments of the command.
        options: options of the command.
        values: values of all options, as the engine parsed them.
        trace: the trace.
        machine: the machine with its overrides, or the machines that were compared.
        question: the sub-command of the study, such as ``alloc`` of ``numa``; empty if none.
        view: a description of the references that were used.
    """
    from nearfar import _engine

    given = {name: value for name, value in values.items() if name != "machine"}
    words = [*arguments, *machines.words(machine)]
    run: Run = {"study": study}
    if question:
        run["question"] = question
    run["command"] = command_line(f"{study} {question}".strip(), words, options, given)
    if trace is not None:
        run |= of_trace(trace)
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


def of_trace(trace: Path) -> Run:
    """The part of a record that says which trace was used."""
    text = read_trace(trace)
    info = json.loads(text)
    source = info["source"]
    return {
        "trace": str(trace),
        "trace_json_sha256": hashlib.sha256(text).hexdigest(),
        "traced": shlex.join(source["command"]) or source["detail"],
        "trace_complete": info["complete"],
        "sampled_trace": source.get("sampled", False),
        **({"sampled_pages": sample["rate"]} if (sample := source.get("sample")) else {}),
        **({"thp_disabled": True} if source.get("thp_disabled") else {}),
    }
