"""How each statement of paper 000 (page-size advice) is measured.

One function per key of papers/000/statements.toml. Each returns our number, in the statement's
unit, and a note with details.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Final

import numpy as np

from nearfar import units
from nearfar.advise.one_vm import Advice
from nearfar.paging_findings import USUAL_PAGE
from nearfar.reproduce import statements
from nearfar.reproduce._evidence import MEMORIES, PAPER_000, SIZES, Evidence, falling
from nearfar.reproduce._paper_001 import by_workload, median, share, steps, turns

Measure = Callable[[Evidence], tuple[float, str]]

#: Index of 4 KiB.
_USUAL: Final = SIZES.index(USUAL_PAGE)
#: VMs with little and with much memory, according to the paper.
_SMALL: Final = ("VM-2", "VM-9")
_LARGE: Final = ("VM-1", "VM-3", "VM-4", "VM-5", "VM-7", "VM-8", "VM-10")


@functools.cache
def chosen() -> dict[str, int]:
    """Sizes that the paper's model chose, bytes, by VM."""
    return {
        statement.key.removeprefix("page-"): 1024 * int(statement.published)
        for statement in statements("000")
        if statement.key.startswith("page-VM-")
    }


def _on_nvm(evidence: Evidence) -> list[Advice]:
    return [row for row in evidence.vms.values() if row["storage"] != "hdd"]


def _hdd_data(evidence: Evidence) -> tuple[float, str]:
    parts = [evidence.parts(name, "hdd") for name in PAPER_000]
    smallest = min(float((data / (translation + data)).min()) for translation, data in parts)
    return smallest, f"memory {units.percent(evidence.setting.memory)}"


def _hdd_flat(evidence: Evidence) -> tuple[float, str]:
    ratios = {}
    for name in PAPER_000:
        times = evidence.times(name, "hdd")[_USUAL : SIZES.index(65536) + 1]
        ratios[name] = float(times.max() / times.min())
    return median(ratios, ".2g")


def _nvm_translation(evidence: Evidence) -> tuple[float, str]:
    cases, shown = [], {}
    for name in PAPER_000:
        parts = [evidence.parts(name, storage) for storage in ("hdd", evidence.setting.nvm)]
        hdd, nvm = (float(t[_USUAL] / (t[_USUAL] + d[_USUAL])) for t, d in parts)
        cases.append(nvm > hdd)
        shown[name] = f"{100 * nvm:.0f} % against {100 * hdd:.2g} %"
    return share(cases), f"translation's share at 4 KiB, NVM against disk: {by_workload(shown)}"


def _nvm_turn(evidence: Evidence) -> tuple[float, str]:
    best = {name: evidence.best(name, evidence.setting.nvm) for name in PAPER_000}
    shown = {name: units.size(size) for name, size in best.items()}
    inside = [SIZES[0] < size < evidence.points(name)[-1].page_bytes for name, size in best.items()]
    return share(inside), f"best: {by_workload(shown)}"


def _nvm_steep(evidence: Evidence) -> tuple[float, str]:
    times = {name: evidence.times(name, evidence.setting.nvm) for name in PAPER_000}
    return median({name: time[-1] / time.min() for name, time in times.items()}, ".2g")


def _trend_varies(evidence: Evidence) -> tuple[float, str]:
    nvm = evidence.setting.nvm
    best = {evidence.best(name, nvm, memory) for name in PAPER_000 for memory in MEMORIES}
    return len(best), f"{units.size(min(best))} to {units.size(max(best))}"


def _tlb_improves(evidence: Evidence) -> tuple[float, str]:
    value, note = steps([falls for name in PAPER_000 for falls in falling(evidence.misses(name))])
    return value, f"{note}, 512 B to 256 KiB"


def _fault_turns(evidence: Evidence) -> tuple[float, str]:
    return turns(evidence, PAPER_000)


def _one_term(evidence: Evidence) -> tuple[float, str]:
    quality = [
        max(evidence.r2("fault", name, memory, model) for model in ("exponential-1", "power"))
        for name in PAPER_000
        for memory in MEMORIES
    ]
    return share([r2 < 0.95 for r2 in quality]), (
        f"R2 of the better of one exponential and a power law: median {np.median(quality):.3f}"
    )


def _model_time(evidence: Evidence) -> tuple[float, str]:
    nvm = evidence.setting.nvm
    errors = np.concatenate(
        [
            np.abs(evidence.predicted(name, nvm, memory) / evidence.times(name, nvm, memory) - 1)
            for name in PAPER_000
            for memory in MEMORIES
            # A fit to too few page sizes has no coefficients.
            if evidence.fit("fault", name, memory).coefficients
        ]
    )
    high, worst = float(np.quantile(errors, 0.95)), float(errors.max())
    return float(np.median(errors)), (
        f"95th percentile {units.percent(high)}, worst {units.percent(worst)}"
    )


def _gain_mean(evidence: Evidence) -> tuple[float, str]:
    gains = [row["simulated_gain"] for row in _on_nvm(evidence)]
    every = [row["simulated_gain"] for row in evidence.vms.values()]
    return float(
        np.mean(gains)
    ), f"with the two VMs on disks {units.percent(float(np.mean(every)))}"


def _gain_most(evidence: Evidence) -> tuple[float, str]:
    row = max(_on_nvm(evidence), key=lambda row: float(row["simulated_gain"]))
    return float(row["simulated_gain"]), f"{row['vm']}; {_bound(evidence, row)}"


def _gain_least(evidence: Evidence) -> tuple[float, str]:
    row = min(_on_nvm(evidence), key=lambda row: float(row["simulated_gain"]))
    return float(row["simulated_gain"]), str(row["vm"])


def _first(evidence: Evidence) -> tuple[float, str]:
    ranked = sorted(_on_nvm(evidence), key=lambda row: -float(row["simulated_gain"]))
    order = [row["vm"] for row in ranked]
    return order.index("VM-4") + 1, f"{order[0]} gains most"


def _gain_all(evidence: Evidence) -> tuple[float, str]:
    rows = _on_nvm(evidence)
    without = [row["vm"] for row in rows if row["simulated_gain"] <= 0]
    note = f"not {', '.join(without)}" if without else "all"
    return 1 - len(without) / len(rows), note


def _gain_by_memory(evidence: Evidence) -> tuple[float, str]:
    from scipy import stats

    rows = _on_nvm(evidence)
    gains = [row["simulated_gain"] for row in rows]
    if len(set(gains)) == 1:
        return 0.0, "all gains are equal"
    correlation = stats.spearmanr([row["memory_fraction"] for row in rows], gains)
    return float(correlation.statistic), "Spearman; ten VMs of five programs"


def _office_sensitive(evidence: Evidence) -> tuple[float, str]:
    # From 1 KiB (index 1).
    times = evidence.times("office", evidence.setting.nvm, 0.1)[1 : SIZES.index(32768) + 1]
    return float(times.max() / times.min()), "10 % memory"


def _gain(evidence: Evidence, vm: str) -> tuple[float, str]:
    row = evidence.vms[vm]
    size, best = (units.size(row[key]) for key in ("advised_page_bytes", "best_page_bytes"))
    note = f"at {size}, simulated; best is {best}"
    if row["storage"] != "hdd":
        note += f"; {_bound(evidence, row)}"
    return float(row["simulated_gain"]), note


def _bound(evidence: Evidence, row: Advice) -> str:
    """The most that larger pages could gain by fewer TLB misses (the papers' equations 1 to 3)."""
    translation, _ = evidence.waits(*_case(row))
    most = float(translation[_USUAL]) / row["baseline_4k_ns"]
    return f"saving every TLB miss would gain {units.percent(most)}"


def _case(row: Advice) -> tuple[str, str, float | None]:
    """Workload, storage and memory of a VM, as methods of :class:`Evidence` take them."""
    return row["workload"].lower(), row["storage"], row["memory_fraction"]


def _page(evidence: Evidence, vm: str) -> tuple[float, str]:
    row = evidence.vms[vm]
    index = SIZES.index(chosen()[vm])
    times = evidence.times(*_case(row))
    best = units.size(row["best_page_bytes"])
    published = "leaves the memory under 8 pages"
    if index < len(times):
        published = units.percent(float(times[index] / row["best_ns"] - 1))
    regret = units.percent(row["regret"])
    return row["advised_page_bytes"] / 1024, (
        f"simulated best {best}; ours costs {regret} more than that, the published size {published}"
    )


def _page_least(evidence: Evidence) -> tuple[float, str]:
    row = min(_on_nvm(evidence), key=lambda row: int(row["advised_page_bytes"]))
    return row["advised_page_bytes"] / 1024, str(row["vm"])


def _page_most(evidence: Evidence) -> tuple[float, str]:
    row = max(_on_nvm(evidence), key=lambda row: int(row["advised_page_bytes"]))
    return row["advised_page_bytes"] / 1024, str(row["vm"])


def _advised(
    evidence: Evidence, vms: tuple[str, ...], compare: Callable[[int, int], bool]
) -> tuple[float, str]:
    """The number of VMs for whose advised page ``compare`` with 4 KiB is true."""
    sizes = {vm: int(evidence.vms[vm]["advised_page_bytes"]) for vm in vms}
    shown = by_workload({vm: units.size(size) for vm, size in sizes.items()})
    return sum(compare(size, USUAL_PAGE) for size in sizes.values()), shown


def _weigh(evidence: Evidence, vms: tuple[str, ...], part: int, least: float) -> tuple[float, str]:
    """The number of VMs in which ``part`` takes at least the share ``least`` of the time at 4 KiB.

    ``part`` is 0 for TLB misses, 1 for faults.
    """
    weights = {}
    for vm in vms:
        case = _case(evidence.vms[vm])
        weights[vm] = float(evidence.waits(*case)[part][_USUAL] / evidence.times(*case)[_USUAL])
    shown = by_workload({vm: units.percent(weight) for vm, weight in weights.items()})
    return sum(weight >= least for weight in weights.values()), shown


MEASURES: Final[dict[str, Measure]] = {
    "hdd-data": _hdd_data,
    "hdd-flat": _hdd_flat,
    "nvm-translation": _nvm_translation,
    "nvm-turn": _nvm_turn,
    "nvm-steep": _nvm_steep,
    "trend-varies": _trend_varies,
    "tlb-improves": _tlb_improves,
    "fault-turns": _fault_turns,
    "one-term": _one_term,
    "model-time": _model_time,
    "gain-mean": _gain_mean,
    "gain-most": _gain_most,
    "gain-least": _gain_least,
    "gain-VM-4-first": _first,
    "gain-nvm-all": _gain_all,
    "gain-by-memory": _gain_by_memory,
    "office-sensitive": _office_sensitive,
    **{f"gain-{vm}": functools.partial(_gain, vm=vm) for vm in ("VM-2", "VM-4", "VM-6", "VM-12")},
    **{f"page-{vm}": functools.partial(_page, vm=vm) for vm in chosen()},
    "page-least": _page_least,
    "page-most": _page_most,
    "small-memory": functools.partial(_advised, vms=_SMALL, compare=operator.lt),
    "large-memory": functools.partial(_advised, vms=_LARGE, compare=operator.gt),
    "faults-weigh": functools.partial(_weigh, vms=_SMALL, part=1, least=0.25),
    "translation-weighs": functools.partial(_weigh, vms=_LARGE, part=0, least=0.1),
}
