"""How each statement of paper 001 (models of TLB miss and page fault rates) is measured.

One function per key of papers/001/statements.toml. Each returns our number, in the statement's
unit, and a note with details.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from nearfar import machine as machines
from nearfar import units
from nearfar.paging_findings import USUAL_PAGE
from nearfar.reproduce._evidence import (
    AXIS,
    MEMORIES,
    NVM_MACHINE,
    PAPER_001,
    SIZES,
    Evidence,
    falling,
)

Measure = Callable[[Evidence], tuple[float, str]]

STORAGES: Final = ("nvm-1x", "nvm-10x", "nvm-100x")
#: Index of the largest size in 001's figures (8 KiB), number of these sizes, and index of 4 KiB.
_LAST: Final = SIZES.index(AXIS)
_SHOWN: Final = _LAST + 1
_USUAL: Final = SIZES.index(USUAL_PAGE)
_AGAINST: Final = f"against the DRAM of machines/{NVM_MACHINE}.toml"
#: Memory sizes of figure 5.
_FIGURE_5: Final = tuple(memory for memory in MEMORIES if memory >= 0.3)


def share(cases: Sequence[bool]) -> float:
    """Part of the cases that are true."""
    return sum(cases) / len(cases)


def by_workload(values: Mapping[str, str]) -> str:
    """The values as text: ``freecell 4 KiB, gedit 8 KiB``."""
    return ", ".join(f"{name} {value}" for name, value in values.items())


def median(values: Mapping[str, float], form: str) -> tuple[float, str]:
    """The median, and the values by workload in the format ``form``."""
    shown = {name: format(value, form) for name, value in values.items()}
    return float(np.median(list(values.values()))), by_workload(shown)


def steps(cases: Sequence[bool]) -> tuple[float, str]:
    """The share of true cases, as a number and in words."""
    return share(cases), f"{sum(cases)} of {len(cases)} steps"


def fewest(evidence: Evidence, workload: str, memory: float | None = None) -> int:
    """Index of the size with the fewest faults."""
    return int(np.argmin(evidence.faults(workload, memory)))


def turns(evidence: Evidence, workloads: Sequence[str]) -> tuple[float, str]:
    """Share of workloads whose faults fall, then rise; and the page sizes with the fewest."""
    indices = {name: fewest(evidence, name) for name in workloads}
    shown = {name: units.size(SIZES[index]) for name, index in indices.items()}
    inside = [0 < index < len(evidence.points(name)) - 1 for name, index in indices.items()]
    return share(inside), f"page size with fewest faults: {by_workload(shown)}"


def _read_ns(machine: str, storage: str, size: int = 4096) -> float:
    return machines.load(machine).io_ns(storage, [size])[0]


def _gap(machine: str, storage: str, size: int = 4096) -> float:
    """Time of a random read over that of a DRAM access on the papers' desktop."""
    return _read_ns(machine, storage, size) / machines.load(NVM_MACHINE).access_times().dram_ns


def _hdd_time(_: Evidence) -> tuple[float, str]:
    return _read_ns("desktop-hdd", "hdd") / 1e6, "machines/desktop-hdd.toml, a random read of 4 KiB"


def _hdd_gap(_: Evidence) -> tuple[float, str]:
    return _gap(
        "desktop-hdd", "hdd"
    ), f"machines/desktop-hdd.toml, a random read of 4 KiB; {_AGAINST}"


def _flash_time(_: Evidence) -> tuple[float, str]:
    return _read_ns("nvme", "nvme") / 1e3, "machines/nvme.toml, a random read of 4 KiB"


def _flash_gap(_: Evidence) -> tuple[float, str]:
    note = f"machines/nvme.toml, a random read of 4 KiB from a consumer drive; {_AGAINST}"
    return _gap("nvme", "nvme"), note


def _nvm_gap(_: Evidence) -> tuple[float, str]:
    pmem = _gap("optane-ssd", "optane-pmem", 512)
    return _gap("optane-ssd", "optane-ssd"), (
        f"an Optane SSD behind NVMe, a random read of 4 KiB; Optane persistent memory: "
        f"{pmem:.2g} times "
        f"for 512 B; {_AGAINST}"
    )


def _influence(evidence: Evidence) -> tuple[float, str]:
    shown, more = {}, []
    for name in PAPER_001:
        translation, data = (float(part[_USUAL]) for part in evidence.waits(name, "nvm-1x"))
        more.append(translation > data)
        shown[name] = f"{units.duration(translation)} against {units.duration(data)}"
    return share(
        more
    ), f"time of TLB misses against that of faults, per reference: {by_workload(shown)}"


def _slower_smaller(evidence: Evidence) -> tuple[float, str]:
    cases, shown = [], {}
    for name in PAPER_001:
        best = [evidence.best(name, storage) for storage in STORAGES]
        cases.append(best[0] >= best[1] >= best[2] and best[0] > best[2])
        shown[name] = " > ".join(units.size(size) for size in best)
    return share(cases), f"best page at 1x > 10x > 100x DRAM: {by_workload(shown)}"


def _falls_at_1x(evidence: Evidence, name: str) -> list[bool]:
    return falling(evidence.times(name, "nvm-1x")[:_SHOWN])


def _gqview_1x(evidence: Evidence) -> tuple[float, str]:
    best = units.size(evidence.best("gqview", "nvm-1x"))
    return share(_falls_at_1x(evidence, "gqview")), f"best at {best}"


def _others_1x(evidence: Evidence) -> tuple[float, str]:
    others = [name for name in PAPER_001 if name != "gqview"]
    rises = [not falls for name in others for falls in _falls_at_1x(evidence, name)]
    shown = {name: units.size(evidence.best(name, "nvm-1x")) for name in others}
    return share(rises), f"best: {by_workload(shown)}"


def _best_by_workload(evidence: Evidence) -> tuple[float, str]:
    best = {name: evidence.best(name, "nvm-1x") for name in PAPER_001}
    shown = {name: units.size(size) for name, size in best.items()}
    return len(set(best.values())), by_workload(shown)


def _best_by_storage(evidence: Evidence) -> tuple[float, str]:
    best = {evidence.best(name, storage) for name in PAPER_001 for storage in STORAGES}
    return len(best), ", ".join(units.size(size) for size in sorted(best))


def _data_time(evidence: Evidence) -> tuple[float, str]:
    by_storage = {
        storage: [
            not falls
            for name in PAPER_001
            for falls in falling(evidence.parts(name, storage)[1][:_SHOWN])
        ]
        for storage in STORAGES
    }
    shown = {storage: f"{share(rises):.2f}" for storage, rises in by_storage.items()}
    return share([case for rises in by_storage.values() for case in rises]), by_workload(shown)


def _translation_time(evidence: Evidence) -> tuple[float, str]:
    times = [evidence.parts(name, "nvm-1x")[0] for name in PAPER_001]
    return steps([falls for time in times for falls in falling(time[:_SHOWN])])


def _tlb_falls(evidence: Evidence) -> tuple[float, str]:
    rates = [evidence.misses(name) for name in PAPER_001]
    return steps([falls for rate in rates for falls in falling(rate[:_SHOWN])])


def _tlb_steep(evidence: Evidence) -> tuple[float, str]:
    rates = {name: evidence.misses(name) for name in PAPER_001}
    return median({name: rate[_LAST] / rate[_LAST - 1] for name, rate in rates.items()}, ".2f")


def _tlb_flattens(evidence: Evidence) -> tuple[float, str]:
    saved = -np.diff(evidence.misses("kghostview")[_LAST - 1 :])
    note = ", ".join(f"{value:.2g}" for value in saved)
    return share(
        falling(saved)
    ), f"TLB misses per reference saved by each doubling from 4 KiB: {note}"


def _power_fit(evidence: Evidence) -> tuple[float, str]:
    coefficients = evidence.fit("tlb", "kghostview").coefficients
    note = ", ".join(f"{key} = {value:.3g}" for key, value in coefficients.items())
    return evidence.r2("tlb", "kghostview"), f"a p^b, p in KiB: {note}"


def _power_fit_all(evidence: Evidence) -> tuple[float, str]:
    return median({name: evidence.r2("tlb", name) for name in PAPER_001}, ".3f")


def _power_best(evidence: Evidence) -> tuple[float, str]:
    better, shown = [], {}
    for name in PAPER_001:
        power, other = (
            evidence.r2("tlb", name, model=model) for model in ("power", "exponential-1")
        )
        better.append(power > other)
        shown[name] = f"{power:.3f} against {other:.3f}"
    return share(better), f"R2 of the power fit against the exponential: {by_workload(shown)}"


def _fault_shapes(evidence: Evidence) -> tuple[float, str]:
    _, note = turns(evidence, PAPER_001)
    return len({fewest(evidence, name) for name in PAPER_001}), note


def _fault_turns(evidence: Evidence) -> tuple[float, str]:
    return turns(evidence, PAPER_001)


def _fewest_by_memory(evidence: Evidence, name: str) -> list[int]:
    """:func:`fewest` at each memory size, smallest first."""
    return [fewest(evidence, name, memory) for memory in _FIGURE_5]


def _memory_shapes(evidence: Evidence) -> tuple[float, str]:
    cases, shown = [], {}
    for name in PAPER_001:
        indices = _fewest_by_memory(evidence, name)
        cases.append(len(set(indices)) > 1)
        shown[name] = f"{units.size(SIZES[indices[0]])} to {units.size(SIZES[indices[-1]])}"
    return share(cases), f"page size with fewest faults, 30 % to 100 % memory: {by_workload(shown)}"


def _turn_earlier(evidence: Evidence) -> tuple[float, str]:
    return steps(
        [
            with_more >= with_less
            for name in PAPER_001
            for with_less, with_more in pairwise(_fewest_by_memory(evidence, name))
        ]
    )


def _exponential_fit(evidence: Evidence) -> tuple[float, str]:
    return median({name: evidence.r2("fault", name) for name in PAPER_001}, ".3f")


def _exponential_fit_all(evidence: Evidence) -> tuple[float, str]:
    quality = [evidence.r2("fault", name, memory) for name in PAPER_001 for memory in MEMORIES]
    return float(np.median(quality)), f"worst {min(quality):.3f}"


def _exponential_best(evidence: Evidence) -> tuple[float, str]:
    wins = []
    for name in PAPER_001:
        for memory in MEMORIES:
            double, single, power = (
                evidence.fit("fault", name, memory, model).aic
                for model in ("exponential-2", "exponential-1", "power")
            )
            # An exact fit has no AIC: nothing is better.
            others = [aic for aic in (single, power) if aic is not None]
            wins.append(double is None or (len(others) == 2 and double <= min(others)))
    return share(wins), f"{sum(wins)} of {len(wins)}; against one exponential and a power law"


MEASURES: Final[dict[str, Measure]] = {
    "hdd-time": _hdd_time,
    "hdd-gap": _hdd_gap,
    "flash-time": _flash_time,
    "flash-gap": _flash_gap,
    "nvm-gap": _nvm_gap,
    "influence": _influence,
    "slower-smaller": _slower_smaller,
    "gqview-1x": _gqview_1x,
    "others-1x": _others_1x,
    "best-by-workload": _best_by_workload,
    "best-by-storage": _best_by_storage,
    "data-time": _data_time,
    "translation-time": _translation_time,
    "tlb-falls": _tlb_falls,
    "tlb-steep": _tlb_steep,
    "tlb-flattens": _tlb_flattens,
    "power-fit": _power_fit,
    "power-fit-all": _power_fit_all,
    "power-best": _power_best,
    "fault-shapes": _fault_shapes,
    "fault-turns": _fault_turns,
    "memory-shapes": _memory_shapes,
    "turn-earlier": _turn_earlier,
    "exponential-fit": _exponential_fit,
    "exponential-fit-all": _exponential_fit_all,
    "exponential-best": _exponential_best,
}
