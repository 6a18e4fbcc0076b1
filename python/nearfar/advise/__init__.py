"""``advise``: which page size should each virtual machine be given? (paper 000)

For each VM (what it runs, memory size, storage) the page size of least *predicted* time per
reference, leaving 4 KiB only for a gain above a threshold; then the sizes that the architecture can
really set, and what the simulation says of all of it (docs/advise.md).

>>> result = advise("app.trace", memory="60%", storage=["optane-ssd"])      # doctest: +SKIP
>>> result.rows[0]["advised_page_bytes"]                                    # doctest: +SKIP
32768
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from nearfar import _engine
from nearfar import machine as machines
from nearfar.advise.architectures import neighbours
from nearfar.advise.fleet import Vm
from nearfar.advise.fleet import read as read_fleet
from nearfar.advise.one_vm import USUAL, advice
from nearfar.advise.prediction import Costs, points_of
from nearfar.declared.paging import OPTIONS, Row
from nearfar.errors import NearfarError
from nearfar.paging import MACHINE, paging, trace_warnings
from nearfar.result import FolderResult
from nearfar.schema import Rows, default
from nearfar.sizes import Memory, parse_memory, parse_page_sizes

#: What the paging study behind the advice runs with unless told otherwise.
PAGE_SIZES: Final = default(OPTIONS, "page_sizes")
TLB: Final = default(OPTIONS, "tlb")

#: What advice is given for unless told otherwise.
MEMORY: Final = "50%"
ARCH: Final = "x86-64"
MIN_GAIN: Final = 0.05
SIZES: Final = "all"


@dataclass(frozen=True)
class AdviseResult(FolderResult):
    """Advice for one or many VMs.

    Attributes:
        run: how it was made; no times of day.
        rows: one mapping a VM (docs/advise.md names the keys); ``curve`` holds the predicted and
            simulated time at every page size.
        notes: what a reader should know of the traces, lines of plain text.
    """

    run: dict[str, Any]
    rows: list[dict[str, Any]]
    notes: list[str] = field(compare=False, default_factory=list)

    page = "nearfar.report.html.advise:AdvisePage"
    chart = "nearfar.report.plots.advise:draw"
    columns: ClassVar[Rows] = Rows(
        keys=("vm", "workload", "machine", "storage", "arch", ("memory_fraction", "memory_bytes")),
        metrics={
            "simulated_ns": "less",
            "predicted_ns": "less",
            "settable_ns": "less",
            "best_ns": "less",
            "baseline_4k_ns": "less",
            "gain": "more",
            "simulated_gain": "more",
            "regret": "less",
            "model_regret": "less",
            "left_out_error": "less",
            "largest_error": "less",
        },
    )

    @classmethod
    def restore(cls, run: dict[str, Any], tables: Mapping[str, Any]) -> AdviseResult:
        """The result again that :meth:`write` wrote."""
        curves: dict[str, list[dict[str, Any]]] = {}
        for point in tables["curves"].to_pylist():
            curves.setdefault(point.pop("vm"), []).append(point)
        rows = tables["result"].to_pylist()
        for row in rows:
            row["curve"] = curves[row["vm"]]
            row["fitted_page_bytes"] = [p["page_bytes"] for p in row["curve"] if p["fitted"]]
        return cls(run, rows)

    def _tables(self) -> dict[str, Any]:
        import pyarrow

        points = [{"vm": row["vm"], **point} for row in self.rows for point in row["curve"]]
        return {"result": self.table, "curves": pyarrow.Table.from_pylist(points)}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        return {"run": self.run, "rows": self.rows}

    def _run(self) -> dict[str, Any]:
        return self.run

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``, without the curves."""
        import pyarrow

        flat = [{k: v for k, v in row.items() if k not in NESTED} for row in self.rows]
        return pyarrow.Table.from_pylist(flat, schema=_schema())


def advise(
    traces: str | Path | Sequence[str | Path],
    *,
    memory: str = MEMORY,
    machine: Sequence[machines.MachineLike] | None = None,
    storage: Sequence[str] | None = None,
    arch: str = ARCH,
    min_gain: float = MIN_GAIN,
    sizes: str = SIZES,
    model: str = "auto",
    page_sizes: str | Sequence[int] = PAGE_SIZES,
    progress: Callable[[int], None] | None = None,
    **study: Any,
) -> AdviseResult:
    """Advise a page size for each trace x memory size x storage.

    Args:
        traces: a trace folder, or several.
        memory: memory sizes, as :func:`nearfar.paging.paging` takes them.
        machine: machines, or names or paths of their files; by default ``desktop-nvm``, or, where
            ``storage`` is given, a built-in machine that has it.
        storage: storages to page to; all of each machine by default. A storage that only some of
            several machines have is priced for those.
        arch: ``x86-64`` or ``aarch64``.
        min_gain: share of the 4 KiB page's time that another page must save to be advised.
        sizes: the page sizes whose rates the model is shown: ``all``, a list such as
            ``512,4K,64K,2M``, or a number below 64: that many, chosen one after another.
        model: ``auto``, ``papers`` or ``bridge`` (:mod:`nearfar.advise.prediction`).
        page_sizes: what may be advised, and what is simulated to know the regret.
        progress: called now and then with the records done.
        study: further options of :func:`nearfar.paging.paging`, such as ``tlb``.

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    memories = list(dict.fromkeys(_single_memories(memory)))
    described: dict[str, machines.Machine] = {}
    if machine is None and storage is not None:
        places = [(machines.with_storage(device, MACHINE), device) for device in storage]
    else:
        for one in [MACHINE] if machine is None else machine:
            found = machines.load(one)
            described[found.name if one is found else str(one)] = found
        places = [
            (name, device)
            for name, found in described.items()
            for device in (found.storages if storage is None else storage)
            if len(described) == 1 or device in found.storages
        ]
        if not places:
            raise NearfarError(
                f"--storage: no {', '.join(storage or ['storage'])} on {', '.join(described)}; "
                "see `nearfar machine list`"
            )
    several = len(memories) * len(places) > 1
    vms = []
    for trace in [traces] if isinstance(traces, str | Path) else traces:
        path = Path(trace)
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
                        arch=arch,
                        min_gain=min_gain,
                    )
                )
    return advise_vms(
        _distinct(vms),
        described=described,
        sizes=sizes,
        model=model,
        page_sizes=page_sizes,
        progress=progress,
        **study,
    )


def advise_fleet(
    path: str | Path,
    *,
    memory: str = MEMORY,
    machine: str | None = None,
    storage: str | None = None,
    arch: str = ARCH,
    min_gain: str = "5%",
    **options: Any,
) -> AdviseResult:
    """Advise a page size for every VM of a fleet file (:mod:`nearfar.advise.fleet`).

    Args:
        path: the file; the next five are defaults for what it leaves out.
        memory: one memory size.
        machine: name or path of a machine file; by default a built-in one that has the storage.
        storage: a storage of the machine.
        arch: ``x86-64`` or ``aarch64``.
        min_gain: such as ``5%``.
        options: as :func:`advise` takes them: ``sizes``, ``model``, ``page_sizes``, ``progress``,
            and those of the study.
    """
    defaults = {"memory": memory, "arch": arch, "min_gain": min_gain}
    defaults |= {"machine": machine} if machine is not None else {}
    defaults |= {"storage": storage} if storage is not None else {}
    return advise_vms(read_fleet(path, defaults), **options, fleet=path)


def advise_vms(
    vms: Sequence[Vm],
    *,
    described: Mapping[str, machines.Machine] | None = None,
    sizes: str = SIZES,
    model: str = "auto",
    page_sizes: str | Sequence[int] = PAGE_SIZES,
    progress: Callable[[int], None] | None = None,
    fleet: str | Path | None = None,
    **study: Any,
) -> AdviseResult:
    """Advise a page size for each of ``vms``; arguments as :func:`advise`.

    ``described`` holds machines by what the VMs call them; others are loaded by name or path.
    Each trace is simulated once for all its VMs: rates depend on page size and memory size only
    (and on the machine's caches, where ``filter`` asks for the references that miss them).
    """
    asked_sizes = parse_page_sizes(page_sizes) if isinstance(page_sizes, str) else page_sizes
    # 4 KiB can always be stayed at.
    tried = sorted({*asked_sizes, USUAL})
    shown = _shown(sizes, tried)
    # What could be set instead is predicted and simulated as well.
    instead = {
        near.page_bytes
        for vm in vms
        for size in tried
        for near in neighbours(vm.arch, size)
        if near.page_bytes <= max(tried)
    }
    everything = sorted({*tried, *instead, *(shown if isinstance(shown, list) else [])})
    known_as = described or {}
    loaded = {vm.machine: machines.load(known_as.get(vm.machine, vm.machine)) for vm in vms}
    costs: dict[tuple[str, str], Costs] = {}
    for vm in vms:
        if len(_single_memories(vm.memory)) != 1:
            raise NearfarError(f"{vm.name}: memory: {vm.memory!r} is more than one size; give one")
        costs.setdefault(
            (vm.machine, vm.storage), Costs.of(loaded[vm.machine], vm.storage, everything)
        )
    rows: dict[int, dict[str, Any]] = {}
    hashes: dict[str, str] = {}
    views: dict[str, str] = {}
    notes: list[str] = []
    filtered = study.get("filter", "none") != "none"
    seen_by = [(vm.trace, vm.machine if filtered else "") for vm in vms]
    for group in dict.fromkeys(seen_by):
        own = [(index, vm) for index, vm in enumerate(vms) if seen_by[index] == group]
        texts = list(dict.fromkeys(vm.memory for _, vm in own))
        first = own[0][1]
        trace = first.trace
        found = paging(
            trace,
            page_sizes=everything,
            memory=",".join(texts),
            machine=loaded[first.machine],
            storage=[first.storage],
            progress=progress,
            **study,
        )
        notes += trace_warnings(found.run)
        hashes[str(trace)] = found.run["trace_json_sha256"]
        views[first.machine if filtered else "all"] = found.run["view"]
        by_memory = _by_memory(found.rows, texts)
        for index, vm in own:
            known = by_memory[vm.memory]
            facts = {
                key: known[0][key] for key in ("memory_bytes", "memory_fraction", "references")
            }
            points = {point.page_bytes: point for point in points_of(known)}
            price = costs[vm.machine, vm.storage]
            rows[index] = advice(
                vm, facts, points, tried, shown, price, str(study.get("tlb", TLB)), model
            )
    asked = {key: value for key, value in study.items() if key not in ("threads", "max_memory")}
    run = {
        "study": "advise",
        "fleet": None if fleet is None else str(fleet),
        "traces": hashes,
        "machines": {name: found.to_dict() for name, found in loaded.items()},
        "view": "; ".join(views.values()),
        "options": {"sizes": sizes, "model": model, "page_sizes": tried, **asked},
        "version": _engine.__version__,
    }
    return AdviseResult(run, [rows[index] for index in range(len(vms))], notes)


# --- pieces


def _distinct(vms: Sequence[Vm]) -> list[Vm]:
    """The VMs, ``-2``, ``-3``, ... added to a name that came before: files bear these names."""
    seen: dict[str, int] = {}
    told = []
    for vm in vms:
        seen[vm.name] = again = seen.get(vm.name, 0) + 1
        told.append(replace(vm, name=f"{vm.name}-{again}") if again > 1 else vm)
    return told


def _single_memories(text: str) -> list[str]:
    """The sizes of a list, each as text again."""
    return [
        f"{round(100 * size.value, 6):g}%" if size.is_fraction else str(int(size.value))
        for size in parse_memory(text)
    ]


def _by_memory(rows: Sequence[Row], texts: Sequence[str]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for text in texts:
        (size,) = parse_memory(text)
        found[text] = [row for row in rows if _is_of(row, size)]
    return found


def _is_of(row: Row, size: Memory) -> bool:
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
        shown, told = [0], str(error).partition(": ")[2]
    else:
        told = f"{text[:60]!r} holds what is not a power of two from 64 bytes to 1 TiB"
    if any(size.bit_count() != 1 or not 64 <= size <= 1 << 40 for size in shown):
        raise NearfarError(f"--sizes: {told}; give such as 512,4K,64K,2M, `all`, or 4")
    return shown


#: Keys of a row that hold lists.
NESTED: Final = ("curve", "fitted_page_bytes")


def _schema() -> Any:
    import pyarrow

    whole, real, text = pyarrow.int64(), pyarrow.float64(), pyarrow.string()
    columns = {
        "vm": text,
        "workload": text,
        "memory_fraction": real,
        "storage": text,
        "advised_page_bytes": whole,
        "settable_page_bytes": whole,
        "predicted_ns": real,
        "simulated_ns": real,
        "baseline_4k_ns": real,
        "gain": real,
        "regret": real,
        "best_page_bytes": whole,
        "scenario": text,
        "trace": text,
        "machine": text,
        "arch": text,
        "memory_bytes": whole,
        "min_gain": real,
        "model": text,
        "model_reason": text,
        "model_page_bytes": whole,
        "model_regret": real,
        "baseline_4k_predicted_ns": real,
        "simulated_gain": real,
        "best_ns": real,
        "confidence": text,
        "left_out_error": real,
        "largest_error": real,
        "limit": text,
        "mechanism": text,
        "settable_predicted_ns": real,
        "settable_ns": real,
        "settable_price": real,
        "why": text,
    }
    return pyarrow.schema(list(columns.items()))
