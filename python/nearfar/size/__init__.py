"""``size``: memory, page size and swap for a program, as one plan (docs/size.md).

>>> result = size("app.trace", swap="zram")      # doctest: +SKIP
>>> result.rows[0]["memory_bytes"] >> 20         # doctest: +SKIP
64
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import ClassVar, Unpack, cast

from nearfar import machine as machines
from nearfar.advise.fleet import Vm, distinct, inputs_of
from nearfar.advise.fleet import read as read_fleet
from nearfar.declared import size as declared
from nearfar.errors import NearfarError
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, complete, takes
from nearfar.size.one import PASSES, sized
from nearfar.size.swap import NONE, usual
from nearfar.sizes import parse_memory
from nearfar.strict import parse_json, read_trace


class SizeRun(Run, total=False):
    """Provenance; ``traces``: the hash of each trace's ``trace.json``."""

    fleet: str | None
    traces: dict[str, str]


@dataclass(frozen=True)
class SizeResult(FolderResult):
    """Sizes of one or many programs.

    Attributes:
        run: how they were found.
        rows: one per program or VM (docs/size.md names the keys).
        notes: warnings about the traces, one per line.
    """

    run: SizeRun
    rows: list[declared.Row]
    notes: list[str] = field(compare=False, default_factory=list)

    shown = "nearfar.report.size:view"
    columns: ClassVar[Rows] = declared.ROWS


@dataclass(frozen=True)
class Plan:
    """The input: programs, as VMs, and host machines by name."""

    vms: Sequence[Vm]
    machines: Mapping[str, machines.Machine]
    options: declared.Options
    arguments: Sequence[Path]
    fleet: Path | None

    @property
    def references(self) -> int:
        """References to read, in all passes over all traces."""
        traces = (parse_json(read_trace(vm.trace)) for vm in self.vms)
        passes = PASSES + self.options["thp"]
        return sum(passes * int(trace["records"]) for trace in traces)

    @classmethod
    def of(
        cls,
        traces: str | PathLike[str] | Sequence[str | PathLike[str]],
        **options: Unpack[declared.Options],
    ) -> Plan:
        """Read and check everything but the traces.

        Raises:
            NearfarError: bad input.
        """
        from nearfar import _engine

        paths, fleet = inputs_of(traces)
        parsed = complete(declared.OPTIONS, options)
        parsed["zram_ratio"] = zram_ratio(parsed["zram_ratio"])
        if parsed["ram"] is not None and len(parse_memory(parsed["ram"], "--ram")) != 1:
            raise NearfarError(f"--ram: {parsed['ram']!r} is more than one size; give one")
        swap = parsed["swap"] or usual()
        devices = [] if swap == NONE else [swap]
        loaded: dict[str, machines.Machine] = {}
        if fleet is None:
            machine = machines.paging_machine(parsed["machine"], devices)
            loaded[machine.name] = machine
            vms = distinct([_vm(path, machine.name, swap, parsed) for path in paths])
        else:
            given = parsed["machine"]
            name = machines.load(machines.usual() if given is None else given).name
            vms = read_fleet(
                fleet,
                {"memory": parsed["ram"] or "", "arch": parsed["arch"], "min_gain": "0%",
                 "machine": name, "storage": swap},
            )  # fmt: skip
            for vm in vms:
                used = [] if vm.storage == NONE else [vm.storage]
                host = loaded.get(vm.machine, vm.machine)
                loaded[vm.machine] = machines.paging_machine(host, used)
        settings = {"slowdown": parsed["slowdown"]}
        _engine.paging_options(list(loaded.values())[:1], options=settings)
        return cls(vms, loaded, parsed, paths, fleet)


def zram_ratio(given: str | float) -> float:
    """The value of ``--zram-ratio``."""
    try:
        ratio = float(given)
    except ValueError:
        ratio = math.nan
    if not 1 <= ratio <= 1000:
        raise NearfarError(f"--zram-ratio: {given!r} is not a number from 1 to 1000")
    return ratio


def _vm(trace: Path, machine: str, swap: str, options: declared.Options) -> Vm:
    name = trace.name.removesuffix(".trace")
    return Vm(name=name, trace=trace, workload=name, memory=options["ram"] or "", machine=machine,
              storage=swap, arch=options["arch"], min_gain=0.0)  # fmt: skip


class _Reading:
    """Adds up the references of all passes over all traces; each pass counts from 0."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self.progress, self.before, self.count = progress, 0, 0

    def __call__(self, count: int) -> None:
        if count < self.count:
            self.before += self.count
        self.count = count
        self.progress(self.before + count)


@takes(declared.OPTIONS)
def size(
    traces: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> SizeResult:
    """Size each trace, or each VM of a fleet file.

    Args:
        traces: trace folders, or one fleet file (:mod:`nearfar.advise.fleet`).
        progress: called now and then with the references read so far, of :attr:`Plan.references`.
        {options}

    Raises:
        NearfarError: bad input.
    """
    return carry_out(Plan.of(traces, **options), progress)


def carry_out(plan: Plan, progress: Callable[[int], None] | None = None) -> SizeResult:
    """Size each VM of a plan."""
    rows: list[declared.Row] = []
    notes: list[str] = []
    hashes: dict[str, str] = {}
    reading = None if progress is None else _Reading(progress)
    for vm in plan.vms:
        machine = plan.machines[vm.machine]
        found = sized(vm, machine, plan.options, reading)
        rows.append(found.row)
        notes += found.notes
        hashes[str(vm.trace)] = found.trace_hash
    options = plan.options
    run: SizeRun = {
        **provenance(
            "size",
            arguments=[*plan.arguments, *machines.words(options["machine"])],
            options=declared.OPTIONS,
            values=cast("dict[str, object]", options),
        ),
        "fleet": None if plan.fleet is None else str(plan.fleet),
        "traces": hashes,
        "machines": {name: machine.to_dict() for name, machine in plan.machines.items()},
    }
    return SizeResult(run, rows, list(dict.fromkeys(notes)))
