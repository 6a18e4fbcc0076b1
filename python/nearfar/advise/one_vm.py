"""The advice for one virtual machine: page size, what can be set of it, how sure it is, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from nearfar import units
from nearfar.advise.architectures import Settable, neighbours, settable
from nearfar.advise.fleet import Vm
from nearfar.advise.prediction import (
    Array,
    Costs,
    Point,
    Prediction,
    choose_sizes,
    from_others,
    left_out_error,
    predict,
)
from nearfar.declared import advise as advise_declared
from nearfar.declared import explain as explain_declared
from nearfar.gain_error import points as in_points
from nearfar.paging_findings import USUAL_PAGE

#: Words for the largest error of the time at a held-out size: up to 5 % good, up to 20 % fair.
CONFIDENCE: Final = ((0.05, "good"), (0.20, "fair"), (float("inf"), "poor"))


class Advice(advise_declared.Row):
    """A row with its lists, which no table holds."""

    fitted_page_bytes: list[int]
    curve: list[advise_declared.CurveRow]
    regions: list[explain_declared.SizesRow]


def advice(
    vm: Vm,
    memory: int,
    fraction: float | None,
    points: Mapping[int, Point],
    tried: Sequence[int],
    shown: list[int] | int,
    costs: Costs,
    tlb: str,
    model: str = "auto",
) -> Advice:
    """The row of one VM.

    Args:
        vm: the machine; its trace is not read.
        memory: its memory size in bytes.
        fraction: the same as a part of the footprint, where it was given so.
        points: every simulated size; the model sees some only.
        tried: sizes that may be advised, of those simulated.
        shown: sizes that the model is shown, of those simulated, or how many it may choose.
        costs: of the storage.
        tlb: the TLB of the study.
        model: as :func:`nearfar.advise.prediction.predict`.
    """
    every = sorted(points)
    # Of the largest pages the memory may hold too few.
    tried = [size for size in tried if size in points]
    if isinstance(shown, int):
        open_to = {size: points[size] for size in tried}
        fitted = sorted(choose_sizes(open_to, shown, tried, costs, memory, tlb))
    else:
        fitted = [size for size in shown if size in points] or [USUAL_PAGE]
    seen = [points[size] for size in fitted]
    answer = predict(seen, every, costs, memory, tlb, model)
    choice = _choose(vm, answer, tried)

    # From here on the simulation is looked at, to say how good the choice was.
    exact = costs.exact([points[size] for size in every])
    row = filled(vm, (memory, fraction), answer, choice, tried, exact)
    simulated = {point["page_bytes"]: point["simulated_ns"] for point in row["curve"]}
    place = answer.sizes.index(choice.advised)
    error = left_out_error(seen, choice.advised, costs, memory, tlb)
    judged = choice.model
    if len(seen) > 1 and {*tried} <= {*fitted}:
        # Nothing was held out, and what is known cannot be missed: each size in turn.
        blind = {size: from_others(seen, size, costs, memory, tlb, answer.model) for size in tried}
        judged = min(tried, key=lambda size: (blind[size], abs(np.log2(size / USUAL_PAGE))))
    row["judged_page_bytes"] = judged
    row["model_regret"] = simulated[judged] / row["best_ns"] - 1
    row["confidence"] = _word(error)
    row["left_out_error"] = error
    row["largest_error"] = max(abs(answer.at(size) / simulated[size] - 1) for size in tried)
    row["limit"] = _limit(
        float(answer.translation[place]) - costs.tlb_ns, float(answer.data[place]) - costs.dram_ns,
        answer.at(choice.advised),
    )  # fmt: skip
    row["why"] = why(row)
    return row


@dataclass(frozen=True)
class Choice:
    """Page sizes: of least predicted time, the advised one, and what is set for it."""

    model: int
    advised: int
    settable: Settable


def filled(
    vm: Vm,
    memory: tuple[int, float | None],
    answer: Prediction,
    choice: Choice,
    tried: Sequence[int],
    exact: tuple[Array, Array],
) -> Advice:
    """A row but for ``limit``, ``why`` and what only a model, or only a machine has.

    Args:
        vm: the machine.
        memory: its bytes, and what part of the peak resident set that is, where it was given so.
        answer: the prediction.
        choice: what was chosen by it.
        tried: sizes that may be advised.
        exact: simulated times of translation and of data, at the sizes of the prediction.
    """
    translation, data = exact
    simulated = dict(zip(answer.sizes, (translation + data).tolist(), strict=True))
    best = min(tried, key=lambda size: (simulated[size], abs(np.log2(size / USUAL_PAGE))))
    return {
        "vm": vm.name,
        "workload": vm.workload,
        "memory_fraction": memory[1],
        "storage": vm.storage,
        "advised_page_bytes": choice.advised,
        "settable_page_bytes": choice.settable.page_bytes,
        "predicted_ns": answer.at(choice.advised),
        "simulated_ns": simulated[choice.advised],
        "baseline_4k_ns": simulated[USUAL_PAGE],
        "gain": answer.gain(choice.advised),
        "regret": simulated[choice.advised] / simulated[best] - 1,
        "best_page_bytes": best,
        "scenario": vm.scenario,
        "trace": str(vm.trace),
        "machine": vm.machine,
        "arch": vm.arch,
        "memory_bytes": memory[0],
        "min_gain": vm.min_gain,
        "model": answer.model,
        "model_reason": answer.reason,
        "fitted_page_bytes": list(answer.known),
        "model_page_bytes": choice.model,
        "model_regret": None,
        "baseline_4k_predicted_ns": answer.at(USUAL_PAGE),
        "simulated_gain": 1 - simulated[choice.advised] / simulated[USUAL_PAGE],
        "best_ns": simulated[best],
        "confidence": None,
        "left_out_error": None,
        "largest_error": None,
        "limit": "",
        "mechanism": choice.settable.mechanism,
        "settable_predicted_ns": answer.at(choice.settable.page_bytes),
        "settable_ns": simulated[choice.settable.page_bytes],
        "settable_price": answer.at(choice.settable.page_bytes) / answer.at(choice.advised) - 1,
        "curve": [
            {
                "page_bytes": size,
                "predicted_ns": float(answer.total[i]),
                "simulated_ns": simulated[size],
                "translation_ns": float(translation[i]),
                "data_ns": float(data[i]),
                "fitted": size in answer.known,
            }
            for i, size in enumerate(answer.sizes)
        ],
        "why": "",
        "model_gain": answer.gain(choice.model),
        "gain_error": None,
        "bloat_bytes": None,
        "judged_page_bytes": None,
        "enough_bytes": None,
        "wanted_bytes": None,
        "thrashes_below_bytes": None,
        "guest_memory_bytes": None,
        "regions": [],
    }


def _choose(vm: Vm, answer: Prediction, tried: Sequence[int]) -> Choice:
    """The model's page, the advised one, and the one to set, from predictions alone.

    A gain within ``left_out_error`` is not refused: the time of a size that the model was shown is
    known, and :meth:`Prediction.best` asks more of one that it was not (docs/advise.md).
    """
    model = answer.best(tried)

    def worth(size: int) -> bool:
        return size == USUAL_PAGE or answer.gain(size) >= vm.min_gain

    advised = model if worth(model) else USUAL_PAGE
    near = [size for size in neighbours(vm.arch, advised) if size.page_bytes in answer.sizes]
    usual = settable(vm.arch)[0]
    setting = min(near, key=lambda size: answer.at(size.page_bytes), default=usual)
    return Choice(model, advised, setting if worth(setting.page_bytes) else usual)


def _limit(translation: float, storage: float, total: float) -> str:
    """What a reference waits for beyond a TLB hit and one access to memory."""
    if max(translation, storage) < 0.01 * total:
        return "memory"
    return "translation" if translation > storage else "storage"


def _word(error: float | None) -> str:
    if error is None:
        return "unknown"
    return next(word for most, word in CONFIDENCE if error <= most)


#: What :func:`why` says of each limit.
LIMITS: Final = {
    "memory": "Hardly any time goes to translation or storage",
    "translation": "Most remaining time is TLB misses",
    "storage": "Most remaining time is page faults",
}


def why(row: Advice) -> str:
    """The advice of a row in a few plain sentences."""
    size, usual = units.size(row["advised_page_bytes"]), units.duration(row["baseline_4k_ns"])
    time = units.duration(row["predicted_ns"])
    lines = []
    if row["advised_page_bytes"] == USUAL_PAGE:
        lines.append(staying(row, f"{time} per reference predicted, {usual} simulated"))
    else:
        lines.append(
            f"{size}: predicted {time} per reference, "
            f"{units.percent(row['gain'])} less than 4 KiB; "
            f"simulated {units.duration(row['simulated_ns'])} against {usual}."
        )
    lines.append(f"{LIMITS[row['limit']]}.")
    if row["regret"] > 0.0005:
        lines.append(
            f"The simulation's best is {units.size(row['best_page_bytes'])}: "
            f"{units.percent(row['regret'])} regret."
        )
    error = row["left_out_error"]
    if error is None:
        known = "not known"
    else:
        known = "below 0.1 %" if error < 0.0005 else units.percent(error)
    lines.append(
        f"Confidence {row['confidence']}: error at a held-out page size {known} ({row['model']})."
    )
    if row["settable_page_bytes"] != row["advised_page_bytes"]:
        price = row["settable_price"]
        sign = "+" if price >= 0 else "-"
        why_not = (
            "no x86-64 or arm64 kernel offers less than 4 KiB"
            if row["advised_page_bytes"] < USUAL_PAGE
            else f"{row['arch']} cannot set {size}"
        )
        lines.append(
            f"Set {units.size(row['settable_page_bytes'])}: {why_not}; "
            f"{sign}{units.percent(abs(price))} time."
        )
    return " ".join(lines)


def staying(row: Advice, cost: str) -> str:
    """Why 4 KiB, in a sentence; ``cost`` is its time in words."""
    if row["model_page_bytes"] == USUAL_PAGE:
        return f"4 KiB is predicted to be best: {cost}."
    size, error = units.size(row["model_page_bytes"]), row["gain_error"]
    if error is not None and row["model_gain"] <= error:
        gain = f"gain {units.percent(row['model_gain'])}"
        reason = f"{gain}, within the error of the prediction ({in_points(error)})"
    else:
        reason = f"be best, but gains less than {units.percent(row['min_gain'])}"
    return f"Stay at 4 KiB ({cost}): {size} is predicted to {reason}."
