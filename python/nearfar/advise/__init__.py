"""``advise``: a page size for each virtual machine (paper 000 in docs/reproduce.md).

For each VM (workload, memory size, storage): the page size of least *predicted* time per reference,
or 4 KiB if the gain is below a threshold; the nearest size that the architecture can set; and the
simulated times of both (docs/advise.md).

>>> result = advise("app.trace", memory="60%", storage=["optane-ssd"])      # doctest: +SKIP
>>> result.rows[0]["advised_page_bytes"]                                    # doctest: +SKIP
32768
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Unpack, cast

from nearfar import machine as machines
from nearfar import trace as traces
from nearfar.advise import by_machine
from nearfar.advise.architectures import neighbours, transparent
from nearfar.advise.memory import Enough, enough, size_guest
from nearfar.advise.one_vm import Advice, advice
from nearfar.advise.options import PASSED
from nearfar.advise.plan import Plan, tried_sizes
from nearfar.advise.prediction import Costs, points_of, shown_sizes
from nearfar.declared import advise as declared
from nearfar.declared import explain as explain_declared
from nearfar.declared import paging as paging_declared
from nearfar.errors import NearfarError
from nearfar.memory_curve import ENOUGH
from nearfar.paging import (
    ALL_REFERENCES,
    PagingResult,
    machine_warnings,
    paging,
    trace_warnings,
)
from nearfar.paging_findings import USUAL_PAGE
from nearfar.provenance import Run, provenance
from nearfar.regions import by_region
from nearfar.result import FolderResult
from nearfar.schema import Rows, as_text, takes
from nearfar.sizes import Memory, parse_memory
from nearfar.strict import Json

if TYPE_CHECKING:
    import pyarrow


class AdviseRun(Run, total=False):
    """Provenance of advice; ``traces``: hash of each ``trace.json``, by trace folder."""

    fleet: str | None
    traces: dict[str, str]


@dataclass(frozen=True)
class AdviseResult(FolderResult):
    """Advice for one or many VMs.

    Attributes:
        run: its provenance (:mod:`nearfar.provenance`).
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


@takes(declared.OPTIONS)
def advise(
    traces: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> AdviseResult:
    """Advise a page size for each trace x memory size x storage, or for each VM of a fleet file.

    Args:
        traces: trace folders, or one fleet file (:mod:`nearfar.advise.fleet`), whose VMs take
            ``memory``, ``machine``, ``storage``, ``arch`` and ``min_gain`` as defaults.
        progress: called now and then with the number of records done.
        {options}

    Raises:
        NearfarError: bad input.
    """
    return carry_out(Plan.of(traces, **options), progress)


#: Assumed page size of a VM's host.
_HOST_PAGE: Final = "4K"


def carry_out(plan: Plan, progress: Callable[[int], None] | None = None) -> AdviseResult:
    """Advise a page size for each VM of a plan.

    Each trace is simulated once for all its VMs, because rates depend only on page size and memory
    size. It is simulated once per machine with ``view="machine"``, or if ``filter`` drops the
    references that hit the machine's caches.
    """
    vms, loaded, options = plan.vms, plan.machines, plan.options
    as_machine = options["view"] == by_machine.VIEW
    tried = tried_sizes(options)
    shown = shown_sizes(str(options["sizes"]), tried)
    # Also simulate the sizes that may be set instead of an advised one.
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
        is_whole_vm = bool(traces.open(trace).info["source"].get("vm_memory_bytes"))
        storages = list(dict.fromkeys(vm.storage for vm in group))
        study_options |= {
            # `_add_large_pages` needs rows with `ENOUGH` memory, which holds pages of every size.
            "memory": ",".join([*memories, *([str(ENOUGH)] if as_machine else [])]),
            "machine": loaded[first.machine],
            "storage": storages if as_machine else [first.storage],
        }
        if as_machine:
            # Pages in a whole virtual machine's trace are the host's: `paging` refuses `nested`.
            default = None if is_whole_vm else _default_nested(loaded[first.machine])
            study_options["nested"] = options["nested"] or default
        study = paging(trace, progress=progress, **study_options)
        notes += [*trace_warnings(study.run), *machine_warnings(study.run)]
        hashes[str(trace)] = study.run["trace_json_sha256"]
        views[first.machine if filtered else "all"] = study.run["view"]
        used = {name: value for name, value in study.run["options"].items() if name in PASSED}
        by_memory = _by_memory(study.rows, memories)
        if as_machine:
            _add_large_pages(by_memory, study)
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
                row = by_machine.advice(vm, studied, options["whole"])
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
                size_guest(row, whole=is_whole_vm)
            rows[index] = row
    recorded = {option.name for option in declared.OPTIONS if option.recorded}
    values = {name: value for name, value in options.items() if name in recorded}
    run: AdviseRun = {
        **provenance(
            "advise",
            arguments=[*plan.arguments, *machines.words(options["machine"])],
            options=declared.OPTIONS,
            values={**values, **used, "page_sizes": tried},
        ),
        "fleet": None if plan.fleet is None else str(plan.fleet),
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
    """The lists of all VMs as one table with a column ``vm``."""
    cells = [(as_text(vm), cell) for vm, cells in lists for cell in cells]
    table = columns.table([cell for _, cell in cells])
    return table.add_column(0, "vm", [[vm for vm, _ in cells]])


def _by_vm(table: pyarrow.Table) -> dict[str, list[dict[str, object]]]:
    """The inverse of :func:`_list_table`."""
    lists: dict[str, list[dict[str, object]]] = {}
    for row in table.to_pylist():
        lists.setdefault(row.pop("vm"), []).append(row)
    return lists


def _default_nested(machine: machines.Machine) -> str | None:
    """The default of ``nested``; None if the machine file has the host's page size."""
    walk = machine.to_dict().get("tlb", {}).get("walk", {})
    return None if "host_page" in walk else _HOST_PAGE


def _by_memory(
    rows: Sequence[paging_declared.Row], texts: Sequence[str]
) -> dict[str, list[paging_declared.Row]]:
    by_memory = {}
    for text in texts:
        (size,) = parse_memory(text)
        by_memory[text] = [row for row in rows if _has_memory(row, size)]
    return by_memory


def _add_large_pages(
    by_memory: Mapping[str, list[paging_declared.Row]], study: PagingResult
) -> None:
    """Add rows of page sizes of which the memory holds fewer than 8 pages.

    Only if it holds the peak resident set: their times are then those with :data:`ENOUGH` memory.
    """
    large = _by_memory(study.rows, [str(ENOUGH)])[str(ENOUGH)]
    peak = study.run["peak_resident_bytes"]
    for rows in by_memory.values():
        known = {row["page_bytes"] for row in rows}
        if not rows or peak is None or rows[0]["memory_bytes"] < peak:
            continue
        memory = {key: rows[0][key] for key in ("memory_bytes", "memory_fraction")}
        for row in large:
            if row["page_bytes"] not in known:
                rows.append(cast("paging_declared.Row", {**row, **memory}))


def _has_memory(row: paging_declared.Row, size: Memory) -> bool:
    """Whether the row has this memory size, in the same form: bytes or a share."""
    fraction = row["memory_fraction"]
    if size.is_fraction != (fraction is not None):
        return False
    value = row["memory_bytes"] if fraction is None else fraction
    return abs(value - size.value) <= 1e-9 * size.value
