"""Compares ``paging`` and ``advise`` with two papers: 000 (page-size advice), 001 (TLB, faults).

Programs similar to the papers' are simulated (:mod:`._evidence`), and each statement is measured
(:mod:`._paper_001`, :mod:`._paper_000`) under one choice of what the papers leave open
(:class:`~nearfar.reproduce._evidence.Setting`), then under :data:`VARIANTS` of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import numpy as np

from nearfar import _engine, units, workload
from nearfar.declared import reproduce as declared
from nearfar.reproduce import Figure, Reproduced, Series, TextTable, compared, measured
from nearfar.reproduce import _paper_000 as paper_000
from nearfar.reproduce import _paper_001 as paper_001
from nearfar.reproduce._evidence import (
    NVM_MACHINE,
    PAPER_000,
    PAPER_001,
    PROGRAMS,
    SIZES,
    Array,
    Evidence,
    Setting,
    Simulation,
    captures,
    simulation,
)

Progress = Callable[[int], None] | None
#: A value for each of :data:`SIZES`, or for only the first few.
Values = Array | Sequence[float]

MEASURES: Final = {"001": paper_001.MEASURES, "000": paper_000.MEASURES}

#: Other choices: name, what it represents, changes of the setting.
VARIANTS: Final[tuple[tuple[str, str, dict[str, str | float | int]], ...]] = (
    ("every reference", "no CPU cache before the TLB and memory", {"view": "none"}),
    ("programs alone", "without what the kernel reads and writes", {"kinds": "load,store,fetch"}),
    ("TLB of 32", "half the entries", {"tlb": "32"}),
    ("TLB of 128", "twice the entries", {"tlb": "128"}),
    ("TLB 64x4+1536x12", "both TLB levels of the papers' desktop", {"tlb": "64x4+1536x12"}),
    ("NVM unit 64 B", "1, 10 or 100 DRAM accesses for each 64 B, not 512 B", {"unit": "64B"}),
    ("NVM unit 4 KiB", "1, 10 or 100 DRAM accesses for each 4 KiB, not 512 B", {"unit": "4KiB"}),
    ("memory 30 %", "in figures that give no memory size", {"memory": 0.3}),
    ("memory 80 %", "in figures that give no memory size", {"memory": 0.8}),
    ("NVM 1x DRAM in page-size advice (000)", "nvm-1x of desktop-nvm", {"nvm": "nvm-1x"}),
    ("NVM 10x DRAM in page-size advice (000)", "nvm-10x of desktop-nvm", {"nvm": "nvm-10x"}),
    ("NVM 100x DRAM in page-size advice (000)", "nvm-100x of desktop-nvm", {"nvm": "nvm-100x"}),
    ("NVM Optane PMem in page-size advice (000)", "persistent memory", {"nvm": "optane-pmem"}),
    ("NVM of 1350 MB/s in page-size advice (000)", "Optane Memory, 32 GB: its published bandwidth, "
     "the P4800X's 7.2 us to the first byte", {"latency": "10.2us", "bandwidth": "1350MB/s"}),
    ("NVM of 7 us and 1 GB/s in page-size advice (000)", "what agrees with most rows; no source",
     {"latency": "11.1us", "bandwidth": "1GB/s"}),
    ("no read-ahead on disks", "a fault reads one page", {"readahead": 0}),
    ("read-ahead of 32 KiB on disks", "8 pages, as Linux reads swap", {"readahead": 32768}),
    ("VM pages other than 4 KiB only if they gain 5 %", "the threshold of nearfar advise",
     {"min_gain": "5%"}),
    ("VM pages up to 256 KiB", "eight times the largest that 000 chose", {"most": 262144}),
    ("VM pages by the papers' formulas", "even if times miss by over 1 %", {"model": "papers"}),
)  # fmt: skip


def study(
    *,
    full: bool = False,
    traces: str | Path | None = None,
    vm: bool = False,
    threads: int = 0,
    progress: Progress = None,
    rows_only: bool = False,
) -> Reproduced:
    """Every result of page-size advice (000) and TLB and fault models (001), with ours.

    Args:
        full: capture the full workloads first, into a temporary folder or ``traces``.
        traces: a folder of full captures, ``freecell.trace`` and so on; by default the repository's
            views: captures reduced to the references that miss the caches (:mod:`._views`).
        vm: use captures of virtual machines, ``freecell-vm.trace`` and so on, which the repository
            does not have.
        threads: 0 = one per core.
        progress: called regularly with the number of references done.
        rows_only: leave out the sensitivity, the figures and the table.

    Raises:
        NearfarError: a trace or program is missing (exit code 3), or a trace is damaged.
    """
    with ExitStack() as stack:
        folder = captures(PROGRAMS, full, traces, vm, stack) or workload.bundled("views")
        simulated = stack.enter_context(simulation(folder, threads, progress, vm))
        evidence = Evidence(simulated, Setting())
        judged = rows(evidence)
        simulations = {name: evidence.rates(name) for name in PROGRAMS}
        reuse = [one.references * 4096 / one.footprint_bytes for one in simulations.values()]
        run = {
            "study": "reproduce paging",
            "captures": "the bundled views of whole runs"
            if simulated.view_references
            else f"captures{' of virtual machines' if vm else ''} in {traces}"
            if traces is not None
            else f"whole runs{' in virtual machines' if vm else ''}",
            "view": f"references that miss the caches of {NVM_MACHINE} (--filter cache)",
            "references_per_page": [round(min(reuse), 1), round(max(reuse), 1)],
            "setting": asdict(evidence.setting),
            "page_sizes": list(SIZES),
            "workloads": {
                name: {"references": one.references, "footprint_bytes": one.footprint_bytes}
                for name, one in simulations.items()
            },
            "version": _engine.__version__,
        }
        if rows_only:
            return Reproduced(judged, run)
        if vm:
            run["kernel_shares"] = {
                name: simulated.kernel_shares(name, evidence.setting) for name in PROGRAMS
            }
        return Reproduced(
            rows=judged,
            run=run,
            sensitivity=sensitivity(simulated, judged),
            figures=figures(evidence),
            tables=[_vm_table(evidence)],
        )


def rows(evidence: Evidence) -> list[declared.Row]:
    """A row for each statement of both papers, under the evidence's setting."""

    def of(paper: str) -> list[declared.Row]:
        return measured(paper, lambda key: MEASURES[paper][key](evidence))

    return [row for paper in MEASURES for row in of(paper)]


def sensitivity(
    simulated: Simulation, usual: Sequence[declared.Row]
) -> list[declared.SensitivityRow]:
    """How many rows hold under each of :data:`VARIANTS`, and which change.

    Views have neither cache hits nor kinds, so variants that need them are left out.
    """
    cases = [compared("as chosen", "this run", usual, usual)]
    for setting, why, changed in VARIANTS:
        if simulated.view_references and changed.keys() & {"view", "kinds"}:
            continue
        other = rows(Evidence(simulated, replace(Setting(), **changed)))  # type: ignore[arg-type]
        cases.append(compared(setting, why, other, usual))
    return cases


# --- figures and tables of the HTML page


def figures(evidence: Evidence) -> list[Figure]:
    """The papers' figures, with our numbers."""
    nvm, memory = evidence.setting.nvm, units.percent(evidence.setting.memory)
    return [
        *(_access_times(evidence, storage) for storage in paper_001.STORAGES),
        {
            "title": "TLB and fault models (001), figures 2 and 3: TLB miss rate, power fit",
            "caption": "Points: simulated. Lines: a p^b, p: page size in KiB.",
            "axis": "TLB miss rate",
            "time": False,
            "series": [_fitted(evidence, "tlb", name) for name in PAPER_001],
        },
        {
            "title": "TLB and fault models (001), figures 4 and 6: fault rate, exponential fit",
            "caption": f"Memory {memory}. Points: simulated. Lines: a e^(bp) + c e^(dp), p: page "
            f"size in KiB.",
            "axis": "page fault rate",
            "time": False,
            "series": [_fitted(evidence, "fault", name) for name in PAPER_001],
        },
        {
            "title": "TLB and fault models (001), figure 5: page fault rate by memory size",
            "caption": "kghostview; the paper does not name the workload of its figure.",
            "axis": "page fault rate",
            "time": False,
            "series": [
                _series(units.percent(share), evidence.faults("kghostview", share))
                for share in (0.3, 0.5, 0.8, 1.0)
            ],
        },
        _mean_times(evidence, "a disk", "hdd"),
        _mean_times(evidence, "NVM", nvm),
        {
            "title": "page-size advice (000), figure 3: model against simulation",
            "caption": f"{nvm}, memory {memory}. Points: simulated. Lines: the model.",
            "axis": "time per reference",
            "time": True,
            "series": [
                _series(
                    name,
                    evidence.times(name, nvm),
                    evidence.predicted(name, nvm, evidence.setting.memory),
                )
                for name in PAPER_000
            ],
        },
    ]


def _access_times(evidence: Evidence, storage: str) -> Figure:
    times = storage.removeprefix("nvm-")
    return {
        "title": f"TLB and fault models (001), figure 1: access time, NVM {times} DRAM",
        "caption": f"Memory {units.percent(evidence.setting.memory)}; the paper does not give it.",
        "axis": "time per reference",
        "time": True,
        "series": [_series(name, evidence.times(name, storage)) for name in PAPER_001],
    }


def _mean_times(evidence: Evidence, name: str, storage: str) -> Figure:
    parts = [evidence.parts(program, storage) for program in PAPER_000]
    shown = min(len(translation) for translation, _ in parts)
    translation, data = (
        np.sum([times[part][:shown] for times in parts], axis=0) / len(parts) for part in (0, 1)
    )
    memory = units.percent(evidence.setting.memory)
    return {
        "title": f"page-size advice (000), figure 2: access time on {name}",
        "caption": f"Mean of five workloads on `{storage}`, memory {memory}.",
        "axis": "time per reference",
        "time": True,
        "series": [_series("translation", translation), _series("data", data)],
    }


def _fitted(evidence: Evidence, quantity: str, name: str) -> Series:
    fit = evidence.fit(quantity, name)
    return _series(name, fit.measured, fit.predict(fit.page_bytes))


def _series(name: str, points: Values, curve: Values | None = None) -> Series:
    lines = points if curve is None else curve
    # Arrays end where memory holds too few pages, so they may be shorter than SIZES.
    return {
        "name": name,
        "points": [(size, float(value)) for size, value in zip(SIZES, points, strict=False)],
        "curve": [(size, float(value)) for size, value in zip(SIZES, lines, strict=False)],
    }


def _vm_table(evidence: Evidence) -> TextTable:
    """000's table 1 and figure 4: the virtual machines, published and ours."""
    lines = [
        [
            vm,
            str(row["scenario"]),
            str(row["workload"]),
            units.percent(row["memory_fraction"] or 0.0),
            "disk" if row["storage"] == "hdd" else "NVM",
            units.size(paper_000.chosen()[vm]),
            units.size(row["advised_page_bytes"]),
            units.size(row["best_page_bytes"]),
            units.duration(row["baseline_4k_ns"]),
            units.duration(row["simulated_ns"]),
            units.percent(row["simulated_gain"]),
            units.percent(row["regret"]),
        ]
        for vm, row in evidence.vms.items()
    ]
    headers = ["vm", "scenario", "workload", "memory", "storage", "page, published", "page, ours"]
    headers += ["simulated best", "time at 4 KiB", "time at ours", "gain", "regret"]
    title = "page-size advice (000), table 1 and figure 4: twelve VMs"
    return {"title": title, "headers": headers, "rows": lines}
