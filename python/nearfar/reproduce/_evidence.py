"""Rates and times of two papers' programs: page-size advice (000), TLB and fault models (001).

Miss and fault rates are simulated once for each filter of references and each TLB. Times, fits
and choices are computed from them under a :class:`Setting`, which holds everything that the papers
leave open.
"""

from __future__ import annotations

import functools
import json
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from nearfar import _engine, models
from nearfar import machine as machines
from nearfar.advise.fleet import Vm, share
from nearfar.advise.one_vm import Advice, advice
from nearfar.advise.prediction import Costs, Point, points_of
from nearfar.declared import advise as declared
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.paging_findings import USUAL_PAGE
from nearfar.reproduce import _views, published
from nearfar.schema import default
from nearfar.workload import capture, load, trace_name

Array = npt.NDArray[np.float64]

#: Programs of 001 and of 000 (workloads/*.toml has our substitutes).
PAPER_001: Final = ("freecell", "gedit", "gqview", "kghostview")
PAPER_000: Final = ("game", "office", "photo", "pdf", "multimedia")
PROGRAMS: Final = (*PAPER_001, *PAPER_000)
#: Page sizes to simulate and fit: from half the smallest that the papers choose to eight times the
#: largest, so that minima are visible.
SIZES: Final = tuple(512 << step for step in range(10))
#: Largest page size in 001's figures, from its text.
AXIS: Final = 8192
#: Memory sizes, as shares of the footprint.
MEMORIES: Final = tuple(percent / 100 for percent in range(10, 101, 10))
#: The machine of 001; 000's (papers/000/machine.toml) has the same caches and TLB.
NVM_MACHINE: Final = "desktop-nvm"
#: Another machine whose storages may stand for 000's NVM.
_OTHER: Final = "optane-ssd"


@dataclass(frozen=True)
class Setting:
    """What the papers leave open, chosen once for all figures.

    Attributes:
        view: the filter of references (``nearfar.declared.names.FILTER``).
        tlb: as ``nearfar paging --tlb``.
        kinds: kinds of references, as ``nearfar paging --kinds``; None: all.
        memory: share of the footprint in figures without a memory size.
        unit: bytes that one NVM access moves; None: as in the machine file.
        nvm: the storage for 000's NVM: of its machine, of 001's or of ``optane-ssd``.
        latency, bandwidth: of reads from 000's NVM; None: as in its machine file.
        min_gain: minimum gain for which a VM gets another page size than 4 KiB; 000 names none and
            prints whole percents, so half a percent.
        readahead: minimum bytes that a fault reads from a disk; smaller pages are read and evicted
            together. Both papers have read-ahead (000, section 1; 001, sections 1 and 3); the size
            is Linux's default.
        model: the model that chooses 000's pages: the papers' formulas, or that of ``nearfar
            advise`` (``auto``), which avoids these if they miss known times by more than 1 %.
        most: the largest page that a VM may get and that its model is fitted to, bytes: twice the
            largest that 000 chose.
    """

    view: str = "cache"
    kinds: str | None = None
    tlb: str = "64"
    memory: float = 0.5
    unit: str | None = None
    nvm: str = "nvm"
    latency: str | None = None
    bandwidth: str | None = None
    min_gain: str = "0.5%"
    readahead: int = 131072
    model: str = "auto"
    most: int = 65536


@dataclass(frozen=True)
class Rates:
    """The simulation of one workload.

    Attributes:
        points: by memory share, a point for each of :data:`SIZES` of which memory holds at least
            eight pages.
        memory_bytes: by memory share.
        references: the number of references in the view.
        footprint_bytes: the footprint in 4 KiB pages.
    """

    points: Mapping[float, list[Point]]
    memory_bytes: Mapping[float, int]
    references: int
    footprint_bytes: int


class Simulation:
    """Rates of the papers' programs, simulated on demand.

    Use :func:`simulation`, which closes the views.
    """

    def __init__(
        self,
        traces: Path,
        stack: ExitStack,
        threads: int,
        progress: Callable[[int], None] | None,
        vm: bool = False,
    ) -> None:
        """Read captures, or views (:mod:`._views`), from the folder ``traces``.

        With ``vm``, captures are those of virtual machines.
        """
        self.traces, self.vm = traces, vm
        #: References that miss the caches, by workload, if ``traces`` has views; else empty.
        self.view_references = {} if vm else _views.references(traces)
        self._stack, self._threads, self._progress = stack, threads, progress
        self._views: dict[tuple[str, str], Path] = {}
        self._rates: dict[tuple[str, str, str, str | None], Rates] = {}

    def rates(self, workload: str, setting: Setting) -> Rates:
        """Rates of a workload.

        Raises:
            NearfarError: its trace is missing or damaged.
        """
        key = (workload, setting.view, setting.tlb, setting.kinds)
        if key not in self._rates:
            self._rates[key] = self._simulate(workload, setting)
        return self._rates[key]

    def _simulate(self, workload: str, setting: Setting) -> Rates:
        key = (workload, setting.view)
        machine = machines.load(NVM_MACHINE)
        if key not in self._views:
            trace = self.traces / trace_name(workload, self.vm)
            if not self.view_references:
                opened = view(trace, setting.view, machine, self._progress)
                trace = self._stack.enter_context(opened).path
            elif setting.view != "cache" or setting.kinds is not None:
                raise NearfarError(
                    f"{trace}: holds only references that miss the caches; "
                    "give --traces a folder of whole captures", exit_code=3,
                )  # fmt: skip
            self._views[key] = trace
        # Call the engine directly, as the fits of `nearfar paging` are not needed.
        answer = json.loads(
            _engine.paging(
                self._views[key],
                [machine],
                options={
                    **_options(setting),
                    "page_sizes": SIZES,
                    "memory": ",".join(f"{share:.15%}" for share in MEMORIES),
                    "storage": ["nvm-1x"],  # Rates are the same on any storage.
                    "view": "paper",
                    "threads": self._threads,
                },
                progress=self._progress,
            )
        )
        # Views leave out repeats (:mod:`._views`), but rates are per reference with repeats.
        references = self.view_references.get(workload, int(answer["records"]))
        for row in answer["rows"]:
            row["references"] = references
            row["tlb_miss_rate"] = row["tlb_misses"] / references
            row["fault_rate"] = row["faults"] / references
        by_memory = {
            share: [row for row in answer["rows"] if abs(row["memory_fraction"] - share) < 1e-9]
            for share in MEMORIES
        }
        return Rates(
            {share: points_of(rows) for share, rows in by_memory.items()},
            {share: int(rows[0]["memory_bytes"]) for share, rows in by_memory.items()},
            references,
            int(answer["footprint_bytes"]),
        )

    def kernel_shares(self, workload: str, setting: Setting) -> dict[str, float]:
        """The kernel's share of each count (references, TLB misses, faults) at 4 KiB."""
        memory = self.rates(workload, setting).memory_bytes[setting.memory]
        options = {**_options(setting), "page_sizes": [USUAL_PAGE], "memory": str(memory)}
        view = self._views[workload, setting.view]
        answer = json.loads(_engine.paging_explain(view, options=options, progress=self._progress))
        counts = ("references", "tlb_misses", "faults")
        return {name: answer["kernel"][name] / answer["total"][name] for name in counts}


def _options(setting: Setting) -> dict[str, object]:
    """The engine's options. As in the papers, pages are never freed."""
    kinds = {} if setting.kinds is None else {"kinds": setting.kinds}
    return {"tlb": setting.tlb, "lifetimes": "off", **kinds}


@contextmanager
def simulation(
    traces: Path,
    threads: int = 0,
    progress: Callable[[int], None] | None = None,
    vm: bool = False,
) -> Iterator[Simulation]:
    """Open a :class:`Simulation`; its views are removed when it is closed."""
    with ExitStack() as stack:
        yield Simulation(traces, stack, threads, progress, vm)


def captures(
    names: Sequence[str], full: bool, traces: str | Path | None, vm: bool, stack: ExitStack
) -> Path | None:
    """The folder with captures of these workloads; None: they come with the sources.

    With ``full``, missing captures are made first; without ``traces``, into a folder that ``stack``
    removes.

    Raises:
        NearfarError: a capture is missing or cannot be made (exit code 3).
    """
    if traces is None and not full:
        if vm:
            raise NearfarError(
                "--vm: captures of virtual machines do not come with the sources; "
                "give --traces FOLDER, or --full to capture"
            )
        return None
    if traces is None:
        traces = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="nearfar-", ignore_cleanup_errors=True)
        )
    folder = Path(traces)
    files = {name: trace_name(name, vm) for name in names}
    missing = [name for name in names if not (folder / files[name] / "trace.json").is_file()]
    if missing and not full:
        words = f"{' '.join(missing)}{' --vm' if vm else ''} -o {folder}"
        fix = f"capture it with `nearfar workload capture {words}`"
        raise NearfarError(f"{folder}: has no {files[missing[0]]}; {fix}", exit_code=3)
    programs = list(map(load, missing))
    for program in programs:
        program.check_there(vm)
    for program in programs:
        capture(program, folder, vm=vm)
    return folder


class Evidence:
    """Times, fits and choices under one setting, computed on demand.

    Arrays have a value for each of :data:`SIZES` of which memory holds at least eight pages.
    ``memory`` is a share of the footprint, by default that of the setting.
    """

    def __init__(self, simulated: Simulation, setting: Setting) -> None:
        """Take the simulation of the rates."""
        self.simulated, self.setting = simulated, setting
        self._costs: dict[str, Costs] = {}

    def rates(self, workload: str) -> Rates:
        """The simulation of a workload."""
        return self.simulated.rates(workload, self.setting)

    def points(self, workload: str, memory: float | None = None) -> list[Point]:
        """Rates of a workload at each size."""
        return self.rates(workload).points[self.setting.memory if memory is None else memory]

    def misses(self, workload: str) -> Array:
        """TLB miss rate at each size."""
        return np.array([point.misses for point in self.points(workload)])

    def faults(self, workload: str, memory: float | None = None) -> Array:
        """Page fault rate at each size."""
        return np.array([point.faults for point in self.points(workload, memory)])

    def fit(
        self, quantity: str, workload: str, memory: float | None = None, model: str | None = None
    ) -> models.Fit:
        """A model fitted to the rates at all sizes; by default that of the papers."""
        rates = self.misses(workload) if quantity == "tlb" else self.faults(workload, memory)
        return _fit(quantity, tuple(rates.tolist()), model or models.QUANTITIES[quantity])

    def r2(
        self, quantity: str, workload: str, memory: float | None = None, model: str | None = None
    ) -> float:
        """R2 of :meth:`fit`; 0 if rates have no variance."""
        return float(self.fit(quantity, workload, memory, model).r2 or 0.0)

    def costs(self, storage: str) -> Costs:
        """Costs on a storage of any machine, with the TLB and DRAM of the papers' desktop."""
        if storage not in self._costs:
            desktop = machines.load(NVM_MACHINE)
            if (unit := self.setting.unit) is not None:
                units = {f"storage.{device}.unit": unit for device in desktop.storages}
                desktop = machines.load(desktop, set=units)
            nvm = {"read_latency": self.setting.latency, "read_bandwidth": self.setting.bandwidth}
            changed = {f"storage.nvm.{key}": value for key, value in nvm.items() if value}
            paper = machines.load(paper_machine(), set=changed)
            candidates = (paper, desktop, machines.load(_OTHER))
            owner = next((one for one in candidates if storage in one.storages), desktop)
            read_sizes = [max(size, self._readahead(storage)) for size in SIZES]
            read = dict(zip(SIZES, owner.io_ns(storage, read_sizes), strict=True))
            self._costs[storage] = Costs(desktop.access_times(), read)
        return self._costs[storage]

    def parts(
        self, workload: str, storage: str, memory: float | None = None
    ) -> tuple[Array, Array]:
        """T_A and T_D (translation and data) at each size, ns per reference, as simulated."""
        return self.costs(storage).exact(self._read_points(workload, storage, memory))

    def _read_points(self, workload: str, storage: str, memory: float | None) -> list[Point]:
        """As :meth:`points`, but pages below the read-ahead have the fault rate at its size."""
        points = self.points(workload, memory)
        read = [point for point in points if point.page_bytes <= self._readahead(storage)]
        return [replace(point, faults=read[-1].faults) for point in read] + points[len(read) :]

    def _readahead(self, storage: str) -> int:
        return self.setting.readahead if storage == "hdd" else 0

    def times(self, workload: str, storage: str, memory: float | None = None) -> Array:
        """T_A + T_D at each size."""
        translation, data = self.parts(workload, storage, memory)
        return translation + data

    def waits(
        self, workload: str, storage: str, memory: float | None = None
    ) -> tuple[Array, Array]:
        """The time of TLB misses and of faults at each size, ns per reference."""
        costs = self.costs(storage)
        translation, data = self.parts(workload, storage, memory)
        return translation - costs.times.tlb_ns, data - costs.times.dram_ns

    def best(self, workload: str, storage: str, memory: float | None = None) -> int:
        """The size with the shortest simulated time."""
        return SIZES[int(np.argmin(self.times(workload, storage, memory)))]

    def predicted(self, workload: str, storage: str, memory: float) -> Array:
        """The papers' model of the total time at each size."""
        costs = self.costs(storage)
        fit = self.fit("fault", workload, memory)
        sizes, faults = fit.page_bytes, fit.predict(fit.page_bytes)
        misses = self.fit("tlb", workload).predict(sizes)
        # The papers' model has no second TLB level: no hits in it.
        total: Array = costs.translation(misses, np.zeros(len(sizes))) + costs.data(sizes, faults)
        return total

    @functools.cached_property
    def vms(self) -> dict[str, Advice]:
        """Advice for each VM of 000's table 1, as rows of ``nearfar advise``."""
        advised = {}
        for vm in fleet(self.setting):
            name, memory = vm.workload.lower(), float(vm.memory.removesuffix("%")) / 100
            points = {
                point.page_bytes: point
                for point in self._read_points(name, vm.storage, memory)
                if point.page_bytes <= self.setting.most
            }
            sizes = list(points)
            advised[vm.name] = advice(
                vm,
                self.rates(name).memory_bytes[memory],
                memory,
                points,
                tried=sizes,
                shown=sizes,
                costs=self.costs(vm.storage),
                tlb=self.setting.tlb,
                model=self.setting.model,
            )
        return advised


@functools.lru_cache(maxsize=4096)
def _fit(quantity: str, rates: tuple[float, ...], model: str) -> models.Fit:
    """A memoised fit; many settings have equal rates."""
    return models.fit(quantity, SIZES[: len(rates)], rates, model=model)


@functools.cache
def paper_machine() -> machines.Machine:
    """The machine of 000's virtual machines, papers/000/machine.toml."""
    return machines.parse("papers/000/machine.toml", published("000/machine"))


def fleet(setting: Setting) -> list[Vm]:
    """000's table 1, from papers/000/fleet.toml; NVM is the setting's."""
    content: dict[str, dict[str, dict[str, str]]] = tomllib.loads(published("000/fleet"))
    return [
        Vm(
            name=name,
            trace=Path(given["trace"]),
            workload=given["workload"],
            memory=given["memory"],
            machine="papers/000/machine.toml",
            storage=given["storage"] if given["storage"] == "hdd" else setting.nvm,
            arch=default(declared.OPTIONS, "arch"),
            min_gain=share(setting.min_gain, "min_gain"),
            scenario=given["scenario"],
        )
        for name, given in content["vm"].items()
    ]


def falling(values: Sequence[float] | Array) -> list[bool]:
    """Whether each value is below the one before it."""
    return [bool(later < earlier) for earlier, later in pairwise(values)]
