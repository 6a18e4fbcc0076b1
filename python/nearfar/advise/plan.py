"""What ``nearfar advise`` will do: its VMs, machines and options, checked before the simulation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Unpack, cast

from nearfar import _engine
from nearfar import machine as machines
from nearfar.advise import by_machine
from nearfar.advise.architectures import transparent
from nearfar.advise.fleet import Vm, distinct, inputs_of, share, share_text
from nearfar.advise.fleet import read as read_fleet
from nearfar.advise.options import IDLE, MEMORY, PAPERS
from nearfar.advise.prediction import check_model
from nearfar.declared import advise as declared
from nearfar.errors import NearfarError
from nearfar.paging_findings import USUAL_PAGE
from nearfar.schema import MachineLike, Option, complete, written
from nearfar.sizes import list_of, parse_memory, parse_page_sizes
from nearfar.strict import parse_json, read_trace

Machines = dict[str, machines.Machine]


@dataclass(frozen=True)
class Plan:
    """What is to be advised.

    Attributes:
        vms: in the order of the rows of the result.
        machines: by the names that the VMs use.
        options: all of them, as ``AdviseResult.run`` records them.
        arguments: the traces or the fleet file.
        fleet: the fleet file, if one was given.
    """

    vms: Sequence[Vm]
    machines: Machines
    options: declared.Options
    arguments: Sequence[Path]
    fleet: Path | None

    @classmethod
    def of(
        cls,
        traces: str | PathLike[str] | Sequence[str | PathLike[str]],
        **options: Unpack[declared.Options],
    ) -> Plan:
        """What :func:`nearfar.advise.advise` does with these arguments.

        Raises:
            NearfarError: bad input.
        """
        paths, fleet = inputs_of(traces)
        parsed = _parsed(options)
        if fleet is None:
            vms, loaded, parsed = _of_traces(paths, parsed)
        else:
            vms, loaded, parsed = _of_fleet(fleet, parsed)
        for vm in vms:
            if len(_single_memories(vm.memory)) != 1:
                raise NearfarError(
                    f"{vm.name}: memory: {vm.memory!r} is more than one size; give one"
                )
        if parsed["slowdown"] is not None:
            any_machine = list(loaded.values())[:1]  # the engine checks the value
            _engine.paging_options(any_machine, options={"slowdown": parsed["slowdown"]})
        check_model(parsed["model"])
        if parsed["set_memory"]:
            _check_whole(vms)
        for trace in dict.fromkeys(vm.trace for vm in vms):
            _check_sample(trace)
        return cls(vms, loaded, parsed, paths, fleet)


def _parsed(options: declared.Options) -> declared.Options:
    """All options, as ``AdviseResult.run`` records them, except the machines.

    Raises:
        NearfarError: unknown option, or ``min_gain`` is not a share.
    """
    parsed = complete(declared.OPTIONS, options)
    parsed["min_gain"] = share_text(share(parsed["min_gain"], "--min-gain"))
    parsed["sizes"] = written(parsed["sizes"])
    storage = parsed["storage"]
    parsed["storage"] = None if storage is None else list_of(storage)
    return parsed


def _changed(options: declared.Options, names: Sequence[str]) -> Iterator[Option]:
    """The named options whose value is not the default."""
    for option in declared.OPTIONS:
        value = cast("dict[str, object]", options)[option.name]
        if option.name in names and written(value) != written(option.default):
            yield option


def _with_view(options: declared.Options, loaded: Iterable[machines.Machine]) -> declared.Options:
    """The options with a view and its default memory.

    The default view is ``machine`` if all machine files describe their processors and no given
    option needs the view ``paper``.

    Raises:
        NearfarError: a given option has no meaning in the view.
    """
    view = options["view"]
    if view is None:
        offered = {size.page_bytes for size in transparent(options["arch"])}
        paper = (
            any(_changed(options, PAPERS))
            or (
                any(_changed(options, ("page_sizes",)))
                and not offered.issuperset(tried_sizes(options))
            )
            or any(machine.processor_lacks() for machine in loaded)
        )
        view = "paper" if paper else by_machine.VIEW
    idle, reason = IDLE.get(view, ((), ""))
    memory = written(options["memory"] or MEMORY.get(view, MEMORY["paper"]))
    for option in _changed(options, idle):
        other = next(name for name in IDLE if name != view)
        raise NearfarError(
            f"{option.flag}: does not apply to --view {view}, {reason}; leave it out, or use "
            f"--view {other}"
        )
    return {**options, "view": view, "memory": memory}


def tried_sizes(options: declared.Options) -> list[int]:
    """The page sizes to consider, and 4 KiB."""
    return sorted({*parse_page_sizes(written(options["page_sizes"])), USUAL_PAGE})


def _of_traces(
    traces: Sequence[Path], options: declared.Options
) -> tuple[list[Vm], Machines, declared.Options]:
    """A VM for each trace x memory size x storage."""
    chosen, storage = machines.listed(options["machine"]), options["storage"]
    loaded: Machines = {}
    named: Sequence[MachineLike | None] = [None] if chosen is None else chosen
    for name in named:
        # A single machine may borrow storages of built-in machines; several use their own.
        machine = machines.paging_machine(name, (storage or ()) if len(named) == 1 else ())
        loaded[str(name) if isinstance(name, str | Path) else machine.name] = machine
    pairs = [
        (name, device)
        for name, machine in loaded.items()
        for device in (machine.storages if storage is None else storage)
        if device in machine.storages
    ]
    if not pairs:
        raise NearfarError(
            f"--storage: no {', '.join(storage or ['storage'])} on {', '.join(loaded)}; "
            "see `nearfar machine list`"
        )
    options = _with_view(options, loaded.values())
    memories = list(dict.fromkeys(_single_memories(str(options["memory"]))))
    several = len(memories) * len(pairs) > 1
    vms = []
    for path in traces:
        stem = path.name.removesuffix(".trace")
        for text in memories:
            for name, device in pairs:
                suffix = f"-{text.replace(' ', '').replace('%', '')}-{device}" if several else ""
                vms.append(
                    Vm(
                        name=stem + suffix,
                        trace=path,
                        workload=stem,
                        memory=text,
                        machine=name,
                        storage=device,
                        arch=options["arch"],
                        min_gain=share(options["min_gain"], "--min-gain"),
                    )
                )
    return distinct(vms), loaded, options


def _of_fleet(path: Path, options: declared.Options) -> tuple[list[Vm], Machines, declared.Options]:
    """The VMs of a fleet file; the options are defaults for keys that the file leaves out."""
    # Filled in below: the default memory depends on the view, which depends on the machines.
    defaults = {"memory": "", "arch": options["arch"], "min_gain": str(options["min_gain"])}
    loaded: Machines = {}
    for name, given in (
        ("machine", machines.listed(options["machine"])),
        ("storage", options["storage"]),
    ):
        if given is None:
            continue
        if len(given) != 1:
            raise NearfarError(f"--{name}: with a fleet file, give one, the default of its VMs")
        (value,) = given
        if isinstance(value, machines.Machine):
            loaded[value.name] = value
            value = value.name
        defaults[name] = str(value)
    vms = read_fleet(path, defaults)
    for vm in vms:
        machine = loaded.get(vm.machine, vm.machine)
        loaded[vm.machine] = machines.paging_machine(machine, [vm.storage])
    options = _with_view(options, loaded.values())
    memory = str(options["memory"])
    return [replace(vm, memory=vm.memory or memory) for vm in vms], loaded, options


def _single_memories(text: str) -> list[str]:
    """The memory sizes of a list, each as text."""
    return [
        f"{round(100 * size.value, 6):g}%" if size.is_fraction else str(int(size.value))
        for size in parse_memory(text)
    ]


def _check_whole(vms: Sequence[Vm]) -> None:
    """Refuse to size a guest from a trace of only part of a run."""
    for vm in vms:
        missing = parse_json(read_trace(vm.trace))["source"].get("unrecorded")
        if missing:
            raise NearfarError(
                f"--set-memory: {vm.trace}: not recorded: {'; '.join(missing)}; record all of it"
            )


def _check_sample(trace: Path) -> None:
    """Refuse a sample of the 4 KiB pages: it does not show what larger pages save."""
    if sample := parse_json(read_trace(trace))["source"].get("sample"):
        raise NearfarError(
            f"{trace}: holds {100 * sample['rate']:g} % of the 4 KiB pages, and advice compares "
            "page sizes; capture without --sample, or compare them with nearfar paging"
        )
