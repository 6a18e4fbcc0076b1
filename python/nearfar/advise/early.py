"""Refusals of ``nearfar advise`` that should not wait for the simulation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from nearfar import _engine
from nearfar.advise import _of_fleet, _of_traces, _parsed
from nearfar.advise.fleet import Vm
from nearfar.advise.prediction import check_model
from nearfar.declared import advise as declared
from nearfar.errors import NearfarError
from nearfar.strict import parse_json, read_trace

#: Pages of a size that a sample needs (``crates/study/src/paging/sample``: 8 groups of 125).
_SAMPLED_PAGES: Final = 1000


def plan(inputs: Sequence[Path], options: declared.Options) -> list[Vm]:
    """The VMs that ``advise`` would advise, in the order of its rows.

    Raises:
        NearfarError: bad input, including values that the study reads only after the simulation.
    """
    parsed = _parsed(options)
    is_fleet = any(path.suffix == ".toml" for path in inputs)
    if is_fleet and len(inputs) > 1:
        raise NearfarError("advise: give one fleet file and nothing else, or only traces")
    if is_fleet:
        vms, machines, parsed = _of_fleet(inputs[0], parsed)
    else:
        vms, machines, parsed = _of_traces(inputs, parsed)
    if parsed["slowdown"] is not None:
        hosts = list(machines.values())[:1]
        _engine.paging_options(hosts, options={"slowdown": parsed["slowdown"]})
    check_model(parsed["model"])
    for trace in dict.fromkeys(vm.trace for vm in vms):
        _check_sample(trace, cast("object", parsed["sample"]))
    return vms


def _check_sample(trace: Path, sample: object) -> None:
    """Refuse a sample without enough pages of 4 KiB, with which all advice is compared."""
    try:
        rate = float(str(sample))
    except ValueError:
        return  # none, or not a number, which the engine refuses
    pages = sum(parse_json(read_trace(trace))["pages_by_kinds"].values())
    least = _SAMPLED_PAGES / max(pages, 1)
    if not 0 < rate < least:
        return
    fix = "leave it out"
    if least <= 1:
        digits = 10 ** (1 - math.floor(math.log10(least)))
        fix = f"give {math.ceil(least * digits) / digits:g} or more, or leave it out"
    raise NearfarError(f"--sample: {rate:g} of the trace has too few pages of 4 KiB; {fix}")
