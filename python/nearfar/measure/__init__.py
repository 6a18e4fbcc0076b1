"""A machine file of the machine that this runs on: what it says of itself, and what is timed on it.

Nothing here is the same twice. What is measured says in its source how far it repeats.

>>> print(measure(quick=True).text)      # doctest: +SKIP
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nearfar import machine
from nearfar.errors import NearfarError
from nearfar.measure import faults, memory, storage, swap, system
from nearfar.measure.bench import Bench, Sourced
from nearfar.measure.documented import documented
from nearfar.numa.describe import quoted

__all__ = ["MeasuredMachine", "measure"]


@dataclass(frozen=True)
class MeasuredMachine:
    """A machine that was measured.

    Attributes:
        text: of its machine file.
        notes: a line each: what is noisy, what was left out and why, what has no key in the file.
    """

    text: str
    notes: list[str] = field(default_factory=list)


def measure(
    *,
    storage_paths: Sequence[str | Path] = (),
    quick: bool = False,
    say: Callable[[str], None] = lambda what: None,
) -> MeasuredMachine:
    """Measure this machine: some 15 seconds, up to a minute where it is busy or has many nodes.

    As root it switches page sizes while it measures their faults, and puts them back
    (:mod:`nearfar.apply.setting`); else it changes nothing.

    Args:
        storage_paths: files, block devices and folders whose device is to be measured.
        quick: fewer and shorter runs: seconds, and rough values.
        say: called with what is measured next.

    Raises:
        NearfarError: a path of ``storage_paths`` cannot be measured.
    """
    paths = [Path(path) for path in storage_paths]
    names = [*(["swap"] if swap.devices() else []), *(storage.name_of(path) for path in paths)]
    for path in paths:
        if names.count(name := storage.name_of(path)) > 1:
            raise NearfarError(f"--storage {path}: two would be called {name}; give another path")
        storage.check(path, quick)
    found = system.read()
    bench = Bench(found, quick=quick, say=say)
    sections = _sections(bench)
    for path in paths:
        name, device = storage.storage(bench, path)
        sections["storage"][name] = {"nvme": device}
    if not sections["storage"]:
        bench.notes.append("storage: none; studies that page to one need it: --storage PATH")
    rough = ", quick: rough values" if quick else ""
    what = found.measured(f"{datetime.date.today().isoformat()}{rough}")
    text = f"description = {quoted(what)}\n" + "".join(_written((), sections))
    # A file that nearfar itself refuses is no result.
    machine.parse("measured", text)
    return MeasuredMachine(text, bench.notes)


def _sections(bench: Bench) -> dict[str, Any]:
    processor = bench.system.processor
    known = (
        documented(*(processor[key] for key in ("vendor", "family", "model")))
        if processor
        else None
    )
    # First, as all else leaves memory behind that was touched before.
    cost, page_fault = faults.cost(bench)
    zero_fill, zeroing = faults.zero_fill(bench, page_fault)
    if zeroing is not None:
        cost["zeroing"] = zeroing
    swapped = swap.swap(bench, page_fault)
    cpu, cycle = memory.cpu(bench, known)
    nodes, latency = memory.nodes(bench)
    caches = memory.caches(bench, latency)
    cpu["fill_buffers"] = memory.fill_buffers(bench, latency)
    tlb = memory.tlb(bench, known, cycle)
    walk = memory.walks(bench, tlb, known) if tlb else None
    if walk is not None:
        cost["page_walk"] = walk
    sections = {"cpu": cpu, "cache": caches, "tlb": tlb, "node": nodes}
    sections["topology"] = memory.topology(bench)
    devices = {"swap": {"nvme": swapped}} if swapped else {}
    return {**sections, "cost": cost, "fault": zero_fill, "storage": devices}


def _written(path: tuple[str, ...], section: Mapping[str, Any]) -> list[str]:
    """Sections and keys as TOML: a section's own keys stand before those below it."""
    own, below = [], []
    for key, value in section.items():
        if isinstance(value, Mapping):
            below += _written((*path, key), value)
        else:
            own.append(f"{key} = {_value(value)}\n")
    return [*(["\n", f"[{'.'.join(path)}]\n", *own] if own else []), *below]


def _value(value: Sourced | str | list[str]) -> str:
    if isinstance(value, Sourced):
        return f"{{ value = {_value(value.value)}, source = {quoted(value.source)} }}"  # type: ignore[arg-type]
    if isinstance(value, str):
        return quoted(value)
    return "[" + ", ".join(map(_value, value)) + "]" if isinstance(value, list) else str(value)
