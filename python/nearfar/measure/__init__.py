"""Makes a machine file of this machine, from what it reports and from measurements.

Results differ between runs. The source of each measured value states its range.

>>> print(measure(quick=True).text)      # doctest: +SKIP
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nearfar import machine
from nearfar.errors import NearfarError
from nearfar.measure import faults, memory, storage, swap, system
from nearfar.measure.bench import Bench, Section, Sourced
from nearfar.measure.documented import documented
from nearfar.numa.describe import quoted

__all__ = ["MeasuredMachine", "measure"]


@dataclass(frozen=True)
class MeasuredMachine:
    """A measured machine.

    Attributes:
        text: the text of its machine file.
        notes: one line each: noisy values, omissions and their reasons, results for which a machine
            file has no key.
    """

    text: str
    notes: list[str] = field(default_factory=list)


def measure(
    *,
    storage_paths: Sequence[str | Path] = (),
    quick: bool = False,
    say: Callable[[str], None] = lambda what: None,
) -> MeasuredMachine:
    """Measure this machine. Takes about 15 seconds, up to a minute if it is busy or has many nodes.

    As root it changes page-size settings while it measures faults, and restores them
    (:mod:`nearfar.apply.setting`); otherwise it changes nothing.

    Args:
        storage_paths: files, block devices and folders whose device is measured.
        quick: fewer and shorter runs, with rough values.
        say: called with the name of the next measurement.

    Raises:
        NearfarError: a path of ``storage_paths`` cannot be measured.
    """
    paths = [Path(path) for path in storage_paths]
    names = [*(["swap"] if swap.devices() else []), *(storage.name_of(path) for path in paths)]
    for path in paths:
        if names.count(name := storage.name_of(path)) > 1:
            raise NearfarError(
                f"--storage {path}: two devices would be named {name}; give another path"
            )
        storage.check(path, quick)
    this = system.read()
    bench = Bench(this, quick=quick, say=say)
    sections = _sections(bench, paths)
    rough = ", quick: rough values" if quick else ""
    what = this.measured(f"{datetime.date.today().isoformat()}{rough}")
    text = f"description = {quoted(what)}\n" + "".join(_toml((), sections))
    # Fails here, not in a later study, if the file is invalid.
    machine.parse("measured", text)
    return MeasuredMachine(text, bench.notes)


def _sections(bench: Bench, storage_paths: Sequence[Path]) -> Section:
    processor = bench.system.processor
    known = None
    if processor is not None:
        known = documented(processor["vendor"], processor["family"], processor["model"])
    # Measure faults first: in a virtual machine, the host already backs memory that other
    # measurements have freed.
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
    devices: Section = {"swap": {"nvme": swapped}} if swapped else {}
    topology = memory.topology(bench)
    for path in storage_paths:
        name, device = storage.storage(bench, path)
        devices[name] = {"nvme": device}
    if not devices:
        bench.notes.append("storage: not measured; studies of paging need one: --storage PATH")
    return {
        "cpu": cpu,
        "cache": caches,
        "tlb": tlb,
        "node": nodes,
        "topology": topology,
        "cost": cost,
        "fault": zero_fill,
        "storage": devices,
    }


def _toml(path: tuple[str, ...], section: Section) -> list[str]:
    """Sections and keys as TOML: the keys of a section before its subsections."""
    keys, below = [], []
    for key, value in section.items():
        if isinstance(value, dict):
            below += _toml((*path, key), value)
        else:
            keys.append(f"{key} = {_value(value)}\n")
    return [*(["\n", f"[{'.'.join(path)}]\n", *keys] if keys else []), *below]


def _value(value: object) -> str:
    if isinstance(value, Sourced):
        return f"{{ value = {_value(value.value)}, source = {quoted(value.source)} }}"
    if isinstance(value, str):
        return quoted(value)
    return "[" + ", ".join(map(_value, value)) + "]" if isinstance(value, list) else str(value)
