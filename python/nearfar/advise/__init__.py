"""``advise``: which page size should each virtual machine be given? (page-size advice, 000)

For each VM (what it runs, memory size, storage) the page size of least *predicted* time per
reference, leaving 4 KiB only for a gain above a threshold; then the sizes that the architecture can
really set, and what the simulation says of all of it (docs/advise.md).

>>> result = advise("app.trace", memory="60%", storage=["optane-ssd"])      # doctest: +SKIP
>>> result.rows[0]["advised_page_bytes"]                                    # doctest: +SKIP
32768
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Final, Unpack, cast

from nearfar import machine as machines
from nearfar.advise import by_machine
from nearfar.advise.architectures import neighbours, transparent
from nearfar.advise.fleet import Vm, share
from nearfar.advise.fleet import read as read_fleet
from nearfar.advise.memory import Enough, enough, size_guest
from nearfar.advise.one_vm import Advice, advice
from nearfar.advise.options import IDLE, MEMORY, PAPERS, PASSED
from nearfar.advise.prediction import Costs, points_of
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


class AdviseRun(Run, total=False):
    """How advice was made."""

    fleet: str | None
    traces: dict[str, str]
    machines: dict[str, Any]


@dataclass(frozen=True)
class AdviseResult(FolderResult):
    """Advice for one or many VMs.

    Attributes:
        run: how it was made; no times of day.
        rows: one mapping a VM (docs/advise.md names the keys); ``curve`` holds the predicted and
            simulated time at every page size, ``regions`` what each mapping gains at each, if that
            was asked for.
        notes: what a reader should know of the traces, lines of plain text.
    """

    run: AdviseRun
    rows: list[Advice]
    notes: list[str] = field(compare=False, default_factory=list)

    shown = "nearfar.report.advise:advice"
    page = "nearfar.report.html.advise:AdvisePage"
    chart = "nearfar.report.plots.advise:draw"
    columns: ClassVar[Rows] = declared.ROWS

    @classmethod
    def restore(cls, run: Any, tables: Mapping[str, Any]) -> AdviseResult:
        """Read back what :meth:`write` wrote."""
        curves = _by_vm(tables["curves"])
        regions = _by_vm(tables["regions"]) if "regions" in tables else {}
        rows = tables["result"].to_pylist()
        for row in rows:
            row["curve"] = curves[row["vm"]]
            row["fitted_page_bytes"] = [p["page_bytes"] for p in row["curve"] if p["fitted"]]
            row["regions"] = regions.get(row["vm"], [])
        return cls(run, rows)

    def _tables(self) -> Mapping[str, Any]:
        lists = {
            "curves": ("curve", declared.CURVE_ROWS),
            "regions": ("regions", explain_declared.SIZES_ROWS),
        }
        found = {"result": self.table}
        for name, (key, columns) in lists.items():
            cells: list[tuple[str, Any]] = [
                (as_text(row["vm"]), one) for row in self.rows for one in cast("Any", row)[key]
            ]
            if cells or key == "curve":
                table = columns.table([one for _, one in cells])
                found[name] = table.add_column(0, "vm", [[vm for vm, _ in cells]])
        return found

    def _run(self) -> Mapping[str, Any]:
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
            VMs have ``memory``, ``machine``, ``storage``, ``arch`` and ``min_gain`` where the file
            does not say.
        progress: called now and then with the records done.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    paths = [Path(one) for one in ([traces] if isinstance(traces, str | PathLike) else traces)]
    fleet = next((path for path in paths if path.suffix == ".toml"), None)
    if fleet is None:
        return _advise_vms(*_of_traces(paths, _asked(options)), paths, None, progress)
    if len(paths) > 1:
        raise NearfarError(f"{fleet}: give one fleet file and nothing else, or traces only")
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
        progress: called now and then with the records done.
        {options}
    """
    file = Path(path)
    return _advise_vms(*_of_fleet(file, _asked(options)), [file], file, progress)


# --- what was asked

Described = dict[str, machines.Machine]

#: With what hosts back the memory of a VM that nobody has given large pages.
_HOST_PAGE: Final = "4K"


def _asked(options: declared.Options) -> declared.Options:
    """Every option, as the record of the run holds it but for the machines.

    Raises:
        NearfarError: there is no such option, or a share is none.
    """
    asked = complete(declared.OPTIONS, options)
    asked["min_gain"] = f"{100 * share(asked['min_gain'], '--min-gain'):.15g}%"
    asked["sizes"] = written(asked["sizes"])
    storage = asked["storage"]
    asked["storage"] = list_of(storage) if isinstance(storage, str) else storage
    return asked


def _changed(asked: declared.Options, names: Sequence[str]) -> Iterator[Option]:
    """Those options that have another value than by default."""
    for option in declared.OPTIONS:
        value = cast("dict[str, object]", asked)[option.name]
        if option.name in names and written(value) != written(option.default):
            yield option


def _viewed(asked: declared.Options, described: Iterable[machines.Machine]) -> declared.Options:
    """What was asked, with its view and the memory that goes with it.

    Unless one was asked for, it is what machines spend, where all files describe their processors
    and no option has a meaning in the papers' view alone.

    Raises:
        NearfarError: an option means nothing to the view that was asked for.
    """
    view = asked["view"]
    if view is None:
        offered = {size.page_bytes for size in transparent(asked["arch"])}
        paper = (
            any(_changed(asked, PAPERS))
            or (any(_changed(asked, ("page_sizes",))) and not offered.issuperset(_tried(asked)))
            or any(one.processor_lacks() for one in described)
        )
        view = "paper" if paper else by_machine.MODEL
    idle, reason = IDLE.get(view, ((), ""))
    memory = written(asked["memory"] or MEMORY.get(view, MEMORY["paper"]))
    for option in _changed(asked, idle):
        other = next(name for name in IDLE if name != view)
        raise NearfarError(
            f"{option.flag}: means nothing to --view {view}, {reason}; leave it out, or use "
            f"--view {other}"
        )
    return {**asked, "view": view, "memory": memory}


def _tried(asked: declared.Options) -> list[int]:
    """The page sizes that were asked for, and 4 KiB, which can always be stayed at."""
    return sorted({*parse_page_sizes(written(asked["page_sizes"])), USUAL_PAGE})


def _of_traces(
    traces: Sequence[Path], asked: declared.Options
) -> tuple[list[Vm], Described, declared.Options]:
    """A VM for each trace x memory size x storage; machines by what the VMs call them."""
    chosen, storage = machines.listed(asked["machine"]), asked["storage"]
    described: Described = {}
    asked_for: Sequence[MachineLike | None] = [None] if chosen is None else chosen
    for one in asked_for:
        # Whole machines are compared with the storages that each has.
        borrowed = (storage or ()) if len(asked_for) == 1 else ()
        found = machines.paging_machine(one, borrowed)
        described[found.name if one is None or one is found else str(one)] = found
    places = [
        (name, device)
        for name, found in described.items()
        for device in (found.storages if storage is None else storage)
        if device in found.storages
    ]
    if not places:
        raise NearfarError(
            f"--storage: no {', '.join(storage or ['storage'])} on {', '.join(described)}; "
            "see `nearfar machine list`"
        )
    asked = _viewed(asked, described.values())
    memories = list(dict.fromkeys(_single_memories(str(asked["memory"]))))
    several = len(memories) * len(places) > 1
    vms = []
    for path in traces:
        stem = path.name.removesuffix(".trace")
        for text in memories:
            for name, device in places:
                own = [text.replace(" ", "").replace("%", ""), device]
                vms.append(
                    Vm(
                        name="-".join([stem, *own]) if several else stem,
                        trace=path,
                        workload=stem,
                        memory=text,
                        machine=name,
                        storage=device,
                        arch=asked["arch"],
                        min_gain=share(asked["min_gain"], "--min-gain"),
                    )
                )
    return _distinct(vms), described, asked


def _of_fleet(path: Path, asked: declared.Options) -> tuple[list[Vm], Described, declared.Options]:
    """The VMs of a fleet file; machines that it does not name itself."""
    defaults = {
        # None in any file: what it stands for follows from the view, and that from the machines.
        "memory": "",
        "arch": asked["arch"],
        "min_gain": str(asked["min_gain"]),
    }
    described: Described = {}
    for name, given in (
        ("machine", machines.listed(asked["machine"])),
        ("storage", asked["storage"]),
    ):
        if given is None:
            continue
        if len(given) != 1:
            raise NearfarError(f"--{name}: a fleet file takes one, for VMs that do not say")
        (one,) = given
        if isinstance(one, machines.Machine):
            described[one.name] = one
            one = one.name
        defaults[name] = str(one)
    vms = read_fleet(path, defaults)
    for vm in vms:
        known = described.get(vm.machine, vm.machine)
        described[vm.machine] = machines.paging_machine(known, [vm.storage])
    asked = _viewed(asked, described.values())
    memory = str(asked["memory"])
    return [replace(vm, memory=vm.memory or memory) for vm in vms], described, asked


def _advise_vms(
    vms: Sequence[Vm],
    described: Described,
    asked: declared.Options,
    arguments: Sequence[Path],
    fleet: Path | None,
    progress: Callable[[int], None] | None,
) -> AdviseResult:
    """Advise a page size for each of ``vms``.

    Each trace is simulated once for all its VMs: rates depend on page size and memory size only
    (and on the machine's caches, where ``filter`` asks for the references that miss them). As a
    machine spends it, time is simulated for each machine.
    """
    as_machine = asked["view"] == by_machine.MODEL
    tried = _tried(asked)
    shown = _shown(str(asked["sizes"]), tried)
    # What could be set instead is predicted and simulated as well.
    instead = {
        near.page_bytes
        for vm in vms
        for size in tried
        for near in neighbours(vm.arch, size)
        if near.page_bytes <= max(tried)
    }
    everything = sorted({*tried, *instead, *(shown if isinstance(shown, list) else [])})
    if as_machine:
        offered = {one.page_bytes for vm in vms for one in transparent(vm.arch)}
        everything = tried = [size for size in tried if size in offered]
    loaded = {vm.machine: described[vm.machine] for vm in vms}
    costs: dict[tuple[str, str], Costs] = {}
    for vm in vms:
        if len(_single_memories(vm.memory)) != 1:
            raise NearfarError(f"{vm.name}: memory: {vm.memory!r} is more than one size; give one")
        costs.setdefault(
            (vm.machine, vm.storage), Costs.of(loaded[vm.machine], vm.storage, everything)
        )
    rows: dict[int, Advice] = {}
    hashes: dict[str, str] = {}
    views: dict[str, str] = {}
    notes: list[str] = []
    read: dict[str, object] = {}
    passed = {name: value for name, value in asked.items() if name in PASSED}
    given = cast("paging_declared.Options", {**passed, "page_sizes": everything})
    filtered = asked["filter"] != ALL_REFERENCES
    seen_by = [(vm.trace, vm.machine if filtered or as_machine else "") for vm in vms]
    for group in dict.fromkeys(seen_by):
        own = [(index, vm) for index, vm in enumerate(vms) if seen_by[index] == group]
        texts = list(dict.fromkeys(vm.memory for _, vm in own))
        first = own[0][1]
        trace = first.trace
        given |= {
            "memory": ",".join(texts),
            "machine": loaded[first.machine],
            "storage": list(dict.fromkeys(vm.storage for _, vm in own))
            if as_machine
            else [first.storage],
        }
        if as_machine:
            given["nested"] = asked["nested"] or _host_page(loaded[first.machine])
        found = paging(trace, progress=progress, **given)
        _check_sample(found.run)
        notes += [*trace_warnings(found.run), *machine_warnings(found.run)]
        notes += sample_warnings(found.run)
        hashes[str(trace)] = found.run["trace_json_sha256"]
        views[first.machine if filtered else "all"] = found.run["view"]
        read = {name: value for name, value in found.run["options"].items() if name in PASSED}
        by_memory = _by_memory(found.rows, texts)
        sizes: dict[str, dict[str, Enough]] = {}
        if asked["slowdown"] is not None:
            for name in dict.fromkeys(vm.machine for _, vm in own):
                storages = list(dict.fromkeys(vm.storage for _, vm in own if vm.machine == name))
                sizes[name] = enough(
                    trace, loaded[name], storages, given, asked["slowdown"], progress
                )
        for index, vm in own:
            known = by_memory[vm.memory]
            if all(row["page_bytes"] != USUAL_PAGE for row in known):
                raise NearfarError(
                    f"{vm.name}: memory: {vm.memory} holds fewer than 8 pages of 4 KiB, which "
                    "thrash in any program; give more"
                )
            if as_machine:
                spent = [row for row in known if row["storage"] == vm.storage]
                row = by_machine.advice(vm, spent)
                if asked["regions"]:
                    options, machine = found.run["options"], loaded[vm.machine]
                    row["regions"] = by_region(trace, machine, options, spent, progress)
            else:
                row = advice(
                    vm,
                    known[0]["memory_bytes"],
                    known[0]["memory_fraction"],
                    {point.page_bytes: point for point in points_of(known)},
                    tried,
                    shown,
                    costs[vm.machine, vm.storage],
                    str(asked["tlb"]),
                    asked["model"],
                )
            if vm.machine in sizes:
                sizes[vm.machine][vm.storage].write(row)
            if asked["set_memory"]:
                size_guest(row)
            rows[index] = row
    recorded = {option.name for option in declared.OPTIONS if option.recorded}
    kept = {name: value for name, value in asked.items() if name in recorded}
    run = provenance(
        "advise",
        arguments=[*arguments, *machines.words(asked["machine"])],
        options=declared.OPTIONS,
        values={**kept, **read, "page_sizes": tried},
    )
    whole: AdviseRun = {
        **run,
        "fleet": None if fleet is None else str(fleet),
        "traces": hashes,
        "machines": {name: found.to_dict() for name, found in loaded.items()},
        "view": "; ".join(views.values()),
    }
    ordered = [rows[index] for index in range(len(vms))]
    return AdviseResult(whole, ordered, list(dict.fromkeys(notes)))


# --- pieces


def _by_vm(table: Any) -> dict[str, list[Any]]:
    """The rows of a table of lists, by the VM that they are of."""
    found: dict[str, list[Any]] = {}
    for row in table.to_pylist():
        found.setdefault(row.pop("vm"), []).append(row)
    return found


def _distinct(vms: Sequence[Vm]) -> list[Vm]:
    """The VMs, ``-2``, ``-3``, ... added to a name that came before: files bear these names."""
    seen: dict[str, int] = {}
    answer = []
    for vm in vms:
        seen[vm.name] = again = seen.get(vm.name, 0) + 1
        answer.append(replace(vm, name=f"{vm.name}-{again}") if again > 1 else vm)
    return answer


def _single_memories(text: str) -> list[str]:
    """The sizes of a list, each as text again."""
    return [
        f"{round(100 * size.value, 6):g}%" if size.is_fraction else str(int(size.value))
        for size in parse_memory(text)
    ]


def _host_page(machine: machines.Machine) -> str | None:
    """What backs a VM where the machine's file does not say; None if it does."""
    walk = machine.to_dict().get("tlb", {}).get("walk", {})
    return None if "host_page" in walk else _HOST_PAGE


def _check_sample(run: PagingRun) -> None:
    """Refuse a sample without pages of 4 KiB, which every advice is compared with.

    Raises:
        NearfarError: it has too few of them.
    """
    for one in run["left_out"]:
        if one["page_bytes"] == USUAL_PAGE:
            least = one["least_sample"]
            raise NearfarError(
                f"--sample: {run['options']['sample']:g} of the trace has too few pages of 4 KiB; "
                + (f"give {least:g} or more, or leave it out" if least else "leave it out")
            )


def _by_memory(
    rows: Sequence[paging_declared.Row], texts: Sequence[str]
) -> dict[str, list[paging_declared.Row]]:
    found: dict[str, list[paging_declared.Row]] = {}
    for text in texts:
        (size,) = parse_memory(text)
        found[text] = [row for row in rows if _is_of(row, size)]
    return found


def _is_of(row: paging_declared.Row, size: Memory) -> bool:
    """Whether the row is of the memory size, given the same way."""
    fraction = row["memory_fraction"]
    if size.is_fraction != (fraction is not None):
        return False
    value = row["memory_bytes"] if fraction is None else fraction
    return abs(value - size.value) <= 1e-9 * size.value


def _shown(sizes: str, tried: Sequence[int]) -> list[int] | int:
    """Which sizes the model is shown: a list of them, or how many to choose."""
    text = sizes.strip()
    if text == "all":
        return sorted(tried)
    if text.isdigit() and 0 < int(text) < 64:
        return int(text)
    try:
        shown = sorted(set(parse_page_sizes(text)))
    except NearfarError as error:
        shown, answer = [0], str(error).partition(": ")[2]
    else:
        answer = f"{text[:60]!r} holds what is not a power of two from 64 bytes to 1 TiB"
    if any(size.bit_count() != 1 or not 64 <= size <= 1 << 40 for size in shown):
        raise NearfarError(f"--sizes: {answer}; give such as 512,4K,64K,2M, `all`, or 4")
    return shown
