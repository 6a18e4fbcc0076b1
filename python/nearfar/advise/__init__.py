"""``advise``: a page size for each virtual machine (page-size advice, 000).

For each VM (workload, memory size, storage): the page size of least *predicted* time per reference,
other than 4 KiB only for a gain above a threshold; the nearest size that the architecture can set;
and the simulated times of both (docs/advise.md).

>>> result = advise("app.trace", memory="60%", storage=["optane-ssd"])      # doctest: +SKIP
>>> result.rows[0]["advised_page_bytes"]                                    # doctest: +SKIP
32768
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Unpack, cast

from nearfar import machine as machines
from nearfar.advise import by_machine
from nearfar.advise.architectures import neighbours, transparent
from nearfar.advise.fleet import Vm, distinct, share
from nearfar.advise.fleet import read as read_fleet
from nearfar.advise.memory import Enough, enough, size_guest
from nearfar.advise.one_vm import Advice, advice
from nearfar.advise.options import IDLE, MEMORY, PAPERS, PASSED
from nearfar.advise.prediction import Costs, points_of, shown_sizes
from nearfar.declared import advise as declared
from nearfar.declared import explain as explain_declared
from nearfar.declared import paging as paging_declared
from nearfar.errors import NearfarError
from nearfar.paging import (
    ALL_REFERENCES,
    PagingRun,
    machine_warnings,
    paging,
    sample_warnings,
    trace_warnings,
)
from nearfar.paging_findings import USUAL_PAGE
from nearfar.provenance import Run, provenance
from nearfar.regions import by_region
from nearfar.result import FolderResult
from nearfar.schema import MachineLike, Option, Rows, as_text, complete, takes, written
from nearfar.sizes import Memory, list_of, parse_memory, parse_page_sizes
from nearfar.strict import Json

if TYPE_CHECKING:
    import pyarrow


class AdviseRun(Run, total=False):
    """How advice was made; ``traces``: the hash of each trace's ``trace.json``."""

    fleet: str | None
    traces: dict[str, str]


@dataclass(frozen=True)
class AdviseResult(FolderResult):
    """Advice for one or many VMs.

    Attributes:
        run: how it was made, without the time of day.
        rows: one per VM (docs/advise.md names the keys); ``curve`` has the predicted and simulated
            time at every page size, ``regions`` the gain of each mapping (option ``regions``).
        notes: warnings about the traces, one per line.
    """

    run: AdviseRun
    rows: list[Advice]
    notes: list[str] = field(compare=False, default_factory=list)

    shown = "nearfar.report.advise:advice"
    page = "nearfar.report.html.advise:AdvisePage"
    chart = "nearfar.report.plots.advise:draw"
    columns: ClassVar[Rows] = declared.ROWS

    @classmethod
    def restore(cls, run: Json, tables: Mapping[str, pyarrow.Table]) -> AdviseResult:
        """Read what :meth:`write` wrote."""
        curves = _by_vm(tables["curves"])
        regions = _by_vm(tables["regions"]) if "regions" in tables else {}
        rows = tables["result"].to_pylist()
        for row in rows:
            row["curve"] = curves[row["vm"]]
            row["fitted_page_bytes"] = [p["page_bytes"] for p in row["curve"] if p["fitted"]]
            row["regions"] = regions.get(row["vm"], [])
        return cls(cast("AdviseRun", run), rows)

    def _tables(self) -> Mapping[str, pyarrow.Table]:
        curves = [(row["vm"], row["curve"]) for row in self.rows]
        regions = [(row["vm"], row["regions"]) for row in self.rows]
        tables = {"result": self.table, "curves": _list_table(declared.CURVE_ROWS, curves)}
        if any(cells for _, cells in regions):
            tables["regions"] = _list_table(explain_declared.SIZES_ROWS, regions)
        return tables

    def _run(self) -> Mapping[str, object]:
        return self.run


@takes(declared.OPTIONS)
def advise(
    traces: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> AdviseResult:
    """Advise a page size for each trace x memory size x storage, or for each VM of a fleet file.

    Args:
        traces: a trace folder, or several, or one fleet file (:mod:`nearfar.advise.fleet`), whose
            VMs use the options ``memory``, ``machine``, ``storage``, ``arch`` and ``min_gain`` as
            defaults.
        progress: called now and then with the number of records done.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    paths = [Path(path) for path in ([traces] if isinstance(traces, str | PathLike) else traces)]
    fleet = next((path for path in paths if path.suffix == ".toml"), None)
    if fleet is None:
        return _advise_vms(*_of_traces(paths, _parsed(options)), paths, None, progress)
    if len(paths) > 1:
        raise NearfarError(f"{fleet}: give one fleet file and nothing else, or only traces")
    return advise_fleet(fleet, progress=progress, **options)


@takes(declared.OPTIONS)
def advise_fleet(
    path: str | Path,
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> AdviseResult:
    """Advise a page size for every VM of a fleet file, as :func:`advise` does.

    Args:
        path: the file.
        progress: called now and then with the number of records done.
        {options}
    """
    file = Path(path)
    return _advise_vms(*_of_fleet(file, _parsed(options)), [file], file, progress)


# --- options

#: Machines by the names that the VMs use.
Machines = dict[str, machines.Machine]

#: Page size of a host that was not configured for large pages.
_HOST_PAGE: Final = "4K"


def _parsed(options: declared.Options) -> declared.Options:
    """All options, in the form of the record of the run, except the machines.

    Raises:
        NearfarError: unknown option, or ``min_gain`` is not a share.
    """
    parsed = complete(declared.OPTIONS, options)
    parsed["min_gain"] = f"{100 * share(parsed['min_gain'], '--min-gain'):.15g}%"
    parsed["sizes"] = written(parsed["sizes"])
    storage = parsed["storage"]
    parsed["storage"] = list_of(storage) if isinstance(storage, str) else storage
    return parsed


def _changed(options: declared.Options, names: Sequence[str]) -> Iterator[Option]:
    """Those of the named options that do not have their default value."""
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
            or (any(_changed(options, ("page_sizes",))) and not offered.issuperset(_tried(options)))
            or any(machine.processor_lacks() for machine in loaded)
        )
        view = "paper" if paper else by_machine.MODEL
    idle, reason = IDLE.get(view, ((), ""))
    memory = written(options["memory"] or MEMORY.get(view, MEMORY["paper"]))
    for option in _changed(options, idle):
        other = next(name for name in IDLE if name != view)
        raise NearfarError(
            f"{option.flag}: has no meaning in --view {view}, {reason}; leave it out, or use "
            f"--view {other}"
        )
    return {**options, "view": view, "memory": memory}


def _tried(options: declared.Options) -> list[int]:
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
        # One machine may borrow storages; several are compared with their own.
        machine = machines.paging_machine(name, (storage or ()) if len(named) == 1 else ())
        loaded[machine.name if name is None or name is machine else str(name)] = machine
    places = [
        (name, device)
        for name, machine in loaded.items()
        for device in (machine.storages if storage is None else storage)
        if device in machine.storages
    ]
    if not places:
        raise NearfarError(
            f"--storage: no {', '.join(storage or ['storage'])} on {', '.join(loaded)}; "
            "see `nearfar machine list`"
        )
    options = _with_view(options, loaded.values())
    memories = list(dict.fromkeys(_single_memories(str(options["memory"]))))
    several = len(memories) * len(places) > 1
    vms = []
    for path in traces:
        stem = path.name.removesuffix(".trace")
        for text in memories:
            for name, device in places:
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
    # The default memory depends on the view, which depends on the machines.
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


def _advise_vms(
    vms: Sequence[Vm],
    loaded: Machines,
    options: declared.Options,
    arguments: Sequence[Path],
    fleet: Path | None,
    progress: Callable[[int], None] | None,
) -> AdviseResult:
    """Advise a page size for each of ``vms``.

    Each trace is simulated once for all its VMs, because rates depend only on page size and memory
    size. It is simulated once per machine with ``view="machine"``, or if ``filter`` drops the
    references that hit the machine's caches.
    """
    as_machine = options["view"] == by_machine.MODEL
    tried = _tried(options)
    shown = shown_sizes(str(options["sizes"]), tried)
    # Sizes that may be set instead of an advised one are predicted and simulated as well.
    instead = {
        near.page_bytes
        for vm in vms
        for size in tried
        for near in neighbours(vm.arch, size)
        if near.page_bytes <= max(tried)
    }
    simulated = sorted({*tried, *instead, *(shown if isinstance(shown, list) else [])})
    if as_machine:
        offered = {size.page_bytes for vm in vms for size in transparent(vm.arch)}
        simulated = tried = [size for size in tried if size in offered]
    loaded = {vm.machine: loaded[vm.machine] for vm in vms}
    costs: dict[tuple[str, str], Costs] = {}
    for vm in vms:
        if len(_single_memories(vm.memory)) != 1:
            raise NearfarError(f"{vm.name}: memory: {vm.memory!r} is more than one size; give one")
        if (vm.machine, vm.storage) not in costs:
            costs[vm.machine, vm.storage] = Costs.of(loaded[vm.machine], vm.storage, simulated)
    rows: dict[int, Advice] = {}
    hashes: dict[str, str] = {}
    views: dict[str, str] = {}
    notes: list[str] = []
    used: dict[str, object] = {}
    passed = {name: value for name, value in options.items() if name in PASSED}
    study_options = cast("paging_declared.Options", {**passed, "page_sizes": simulated})
    filtered = options["filter"] != ALL_REFERENCES
    groups: dict[tuple[Path, str], list[int]] = {}
    for index, vm in enumerate(vms):
        machine = vm.machine if filtered or as_machine else ""
        groups.setdefault((vm.trace, machine), []).append(index)
    for (trace, _), members in groups.items():
        group = [vms[index] for index in members]
        memories = list(dict.fromkeys(vm.memory for vm in group))
        first = group[0]
        storages = list(dict.fromkeys(vm.storage for vm in group))
        study_options |= {
            "memory": ",".join(memories),
            "machine": loaded[first.machine],
            "storage": storages if as_machine else [first.storage],
        }
        if as_machine:
            study_options["nested"] = options["nested"] or _host_page(loaded[first.machine])
        study = paging(trace, progress=progress, **study_options)
        _check_sample(study.run)
        notes += [*trace_warnings(study.run), *machine_warnings(study.run)]
        notes += sample_warnings(study.run)
        hashes[str(trace)] = study.run["trace_json_sha256"]
        views[first.machine if filtered else "all"] = study.run["view"]
        used = {name: value for name, value in study.run["options"].items() if name in PASSED}
        by_memory = _by_memory(study.rows, memories)
        sizes: dict[str, dict[str, Enough]] = {}
        if options["slowdown"] is not None:
            for name in dict.fromkeys(vm.machine for vm in group):
                storages = list(dict.fromkeys(vm.storage for vm in group if vm.machine == name))
                sizes[name] = enough(
                    trace, loaded[name], storages, study_options, options["slowdown"], progress
                )
        for index, vm in zip(members, group, strict=True):
            studied = by_memory[vm.memory]
            if all(row["page_bytes"] != USUAL_PAGE for row in studied):
                raise NearfarError(
                    f"{vm.name}: memory: {vm.memory} holds fewer than 8 pages of 4 KiB, which "
                    "thrash in any program; give more"
                )
            if as_machine:
                studied = [row for row in studied if row["storage"] == vm.storage]
                row = by_machine.advice(vm, studied)
                if options["regions"]:
                    row["regions"] = by_region(
                        trace, loaded[vm.machine], study.run["options"], studied, progress
                    )
            else:
                row = advice(
                    vm,
                    studied[0]["memory_bytes"],
                    studied[0]["memory_fraction"],
                    {point.page_bytes: point for point in points_of(studied)},
                    tried,
                    shown,
                    costs[vm.machine, vm.storage],
                    str(options["tlb"]),
                    options["model"],
                )
            if vm.machine in sizes:
                sizes[vm.machine][vm.storage].write(row)
            if options["set_memory"]:
                size_guest(row)
            rows[index] = row
    recorded = {option.name for option in declared.OPTIONS if option.recorded}
    values = {name: value for name, value in options.items() if name in recorded}
    run: AdviseRun = {
        **provenance(
            "advise",
            arguments=[*arguments, *machines.words(options["machine"])],
            options=declared.OPTIONS,
            values={**values, **used, "page_sizes": tried},
        ),
        "fleet": None if fleet is None else str(fleet),
        "traces": hashes,
        "machines": {name: machine.to_dict() for name, machine in loaded.items()},
        "view": "; ".join(views.values()),
    }
    ordered = [rows[index] for index in range(len(vms))]
    return AdviseResult(run, ordered, list(dict.fromkeys(notes)))


# --- helpers


def _list_table(
    columns: Rows, lists: Iterable[tuple[str, Sequence[Mapping[str, object]]]]
) -> pyarrow.Table:
    """The lists of all VMs as one table, with a column for the VM."""
    cells = [(as_text(vm), cell) for vm, cells in lists for cell in cells]
    table = columns.table([cell for _, cell in cells])
    return table.add_column(0, "vm", [[vm for vm, _ in cells]])


def _by_vm(table: pyarrow.Table) -> dict[str, list[dict[str, object]]]:
    """The inverse of :func:`_list_table`."""
    lists: dict[str, list[dict[str, object]]] = {}
    for row in table.to_pylist():
        lists.setdefault(row.pop("vm"), []).append(row)
    return lists


def _single_memories(text: str) -> list[str]:
    """The memory sizes of a list, each as text."""
    return [
        f"{round(100 * size.value, 6):g}%" if size.is_fraction else str(int(size.value))
        for size in parse_memory(text)
    ]


def _host_page(machine: machines.Machine) -> str | None:
    """The host's page size if the machine file does not have it, else None."""
    walk = machine.to_dict().get("tlb", {}).get("walk", {})
    return None if "host_page" in walk else _HOST_PAGE


def _check_sample(run: PagingRun) -> None:
    """Refuse a sample with too few 4 KiB pages, the baseline of all advice.

    Raises:
        NearfarError: it has too few.
    """
    for left in run["left_out"]:
        if left["page_bytes"] == USUAL_PAGE:
            smallest = left["least_sample"]
            raise NearfarError(
                f"--sample: {run['options']['sample']:g} of the trace has too few pages of 4 KiB; "
                + (f"give {smallest:g} or more, or leave it out" if smallest else "leave it out")
            )


def _by_memory(
    rows: Sequence[paging_declared.Row], texts: Sequence[str]
) -> dict[str, list[paging_declared.Row]]:
    by_memory = {}
    for text in texts:
        (size,) = parse_memory(text)
        by_memory[text] = [row for row in rows if _has_memory(row, size)]
    return by_memory


def _has_memory(row: paging_declared.Row, size: Memory) -> bool:
    """Whether the row has this memory size, also given as bytes or as a share."""
    fraction = row["memory_fraction"]
    if size.is_fraction != (fraction is not None):
        return False
    value = row["memory_bytes"] if fraction is None else fraction
    return abs(value - size.value) <= 1e-9 * size.value
