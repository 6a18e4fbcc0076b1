"""The advice for one virtual machine: page size, how to set it, confidence, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nearfar import units
from nearfar.advise.architectures import Settable, neighbours, settable
from nearfar.advise.fleet import Vm
from nearfar.advise.prediction import (
    Array,
    Costs,
    Point,
    Prediction,
    choose_sizes,
    doublings,
    from_others,
    left_out_error,
    predict,
)
from nearfar.declared import advise as advise_declared
from nearfar.declared import explain as explain_declared
from nearfar.gain_error import points as in_points
from nearfar.paging_findings import USUAL_PAGE

#: Words for the confidence, each with its largest error at a held-out size.
CONFIDENCE: Final = ((0.05, "good"), (0.20, "fair"), (float("inf"), "poor"))


class Advice(advise_declared.Row):
    """A row of the result, with the lists that are saved as separate tables."""

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
        vm: the virtual machine; its trace is not read.
        memory: its memory size in bytes.
        fraction: the memory size as a share of the peak resident set; None if given in bytes.
        points: rates of every simulated size; the model sees only some of them.
        tried: simulated sizes that may be advised.
        shown: simulated sizes that the model sees, or how many it may choose.
        costs: of the storage.
        tlb: as for ``nearfar paging --tlb``.
        model: as for :func:`nearfar.advise.prediction.predict`.
    """
    every = sorted(points)
    # Sizes of which the memory holds too few pages are not simulated.
    tried = [size for size in tried if size in points]
    if isinstance(shown, int):
        candidates = {size: points[size] for size in tried}
        fitted = sorted(choose_sizes(candidates, shown, tried, costs, memory, tlb))
    else:
        fitted = [size for size in shown if size in points] or [USUAL_PAGE]
    seen = [points[size] for size in fitted]
    prediction = predict(seen, every, costs, memory, tlb, model)
    choice = _choose(vm, prediction, tried)

    # Compare the choice with the simulation.
    exact = costs.exact([points[size] for size in every])
    row = new_row(vm, (memory, fraction), prediction, choice, tried, exact)
    simulated = {point["page_bytes"]: point["simulated_ns"] for point in row["curve"]}
    index = prediction.sizes.index(choice.advised)
    error = left_out_error(seen, choice.advised, costs, memory, tlb)
    judged = choice.model
    if len(seen) > 1 and {*tried} <= {*fitted}:
        # A prediction from all sizes has no error: judge the choice from held-out predictions.
        blind = {
            size: from_others(seen, size, costs, memory, tlb, prediction.model) for size in tried
        }
        judged = min(tried, key=lambda size: (blind[size], doublings(size)))
    row["judged_page_bytes"] = judged
    row["model_regret"] = simulated[judged] / row["best_ns"] - 1
    row["confidence"] = _confidence(error)
    row["left_out_error"] = error
    row["largest_error"] = max(abs(prediction.at(size) / simulated[size] - 1) for size in tried)
    row["limit"] = _limit(
        float(prediction.translation[index]) - costs.times.tlb_ns,
        float(prediction.data[index]) - costs.times.dram_ns,
        prediction.at(choice.advised),
    )
    row["why"] = why(row)
    return row


@dataclass(frozen=True)
class Choice:
    """The page size of least predicted time, the advised one, and the one to set."""

    model: int
    advised: int
    settable: Settable


def new_row(
    vm: Vm,
    memory: tuple[int, float | None],
    prediction: Prediction,
    choice: Choice,
    tried: Sequence[int],
    exact: tuple[Array, Array],
) -> Advice:
    """A row. Callers set ``limit``, ``why``, and the columns that are always None or empty here.

    Args:
        vm: the virtual machine.
        memory: its bytes, and its share of the peak resident set if it was given as one.
        prediction: of all simulated sizes.
        choice: made from the prediction.
        tried: sizes that may be advised.
        exact: simulated times of translation and of data, at the sizes of the prediction.
    """
    translation, data = exact
    simulated = dict(zip(prediction.sizes, (translation + data).tolist(), strict=True))
    best = min(tried, key=lambda size: (simulated[size], doublings(size)))
    settable_ns = prediction.at(choice.settable.page_bytes)
    return {
        "vm": vm.name,
        "workload": vm.workload,
        "memory_fraction": memory[1],
        "storage": vm.storage,
        "advised_page_bytes": choice.advised,
        "settable_page_bytes": choice.settable.page_bytes,
        "predicted_ns": prediction.at(choice.advised),
        "simulated_ns": simulated[choice.advised],
        "baseline_4k_ns": simulated[USUAL_PAGE],
        "gain": prediction.gain(choice.advised),
        "regret": simulated[choice.advised] / simulated[best] - 1,
        "best_page_bytes": best,
        "scenario": vm.scenario,
        "trace": str(vm.trace),
        "machine": vm.machine,
        "arch": vm.arch,
        "memory_bytes": memory[0],
        "min_gain": vm.min_gain,
        "model": prediction.model,
        "model_reason": prediction.reason,
        "fitted_page_bytes": list(prediction.known),
        "model_page_bytes": choice.model,
        "model_regret": None,
        "baseline_4k_predicted_ns": prediction.at(USUAL_PAGE),
        "simulated_gain": 1 - simulated[choice.advised] / simulated[USUAL_PAGE],
        "best_ns": simulated[best],
        "confidence": None,
        "left_out_error": None,
        "largest_error": None,
        "limit": "",
        "mechanism": choice.settable.mechanism,
        "settable_predicted_ns": settable_ns,
        "settable_ns": simulated[choice.settable.page_bytes],
        "settable_price": settable_ns / prediction.at(choice.advised) - 1,
        "curve": [
            {
                "page_bytes": size,
                "predicted_ns": float(prediction.total[i]),
                "simulated_ns": simulated[size],
                "translation_ns": float(translation[i]),
                "data_ns": float(data[i]),
                "fitted": size in prediction.known,
            }
            for i, size in enumerate(prediction.sizes)
        ],
        "why": "",
        "model_gain": prediction.gain(choice.model),
        "gain_error": None,
        "bloat_bytes": None,
        "judged_page_bytes": None,
        "enough_bytes": None,
        "wanted_bytes": None,
        "thrashes_below_bytes": None,
        "guest_memory_bytes": None,
        "start_gain": None,
        "start_share": None,
        "regions": [],
    }


def _choose(vm: Vm, prediction: Prediction, tried: Sequence[int]) -> Choice:
    """Choose from predictions alone.

    A gain counts even if it is smaller than ``left_out_error``: times at fitted sizes are known
    exactly, and :meth:`Prediction.best` adds a margin to the other times (docs/advise.md).
    """
    model = prediction.best(tried)

    def worth(size: int) -> bool:
        return size == USUAL_PAGE or prediction.gain(size) >= vm.min_gain

    advised = model if worth(model) else USUAL_PAGE
    near = [size for size in neighbours(vm.arch, advised) if size.page_bytes in prediction.sizes]
    base = settable(vm.arch)[0]
    setting = min(near, key=lambda size: prediction.at(size.page_bytes), default=base)
    return Choice(model, advised, setting if worth(setting.page_bytes) else base)


def _limit(translation: float, storage: float, total: float) -> str:
    """What a reference mainly waits for, beyond a TLB hit and one memory access."""
    if max(translation, storage) < 0.01 * total:
        return "memory"
    return "translation" if translation > storage else "storage"


def _confidence(error: float | None) -> str:
    if error is None:
        return "unknown"
    return next(word for limit, word in CONFIDENCE if error <= limit)


LIMITS: Final = {
    "memory": "Translation and storage take hardly any time.",
    "translation": "Most remaining time is TLB misses.",
    "storage": "Most remaining time is page faults.",
}


def why(row: Advice) -> str:
    """The advice of a row in sentences."""
    size, baseline = units.size(row["advised_page_bytes"]), units.duration(row["baseline_4k_ns"])
    time = units.duration(row["predicted_ns"])
    lines = []
    if row["advised_page_bytes"] == USUAL_PAGE:
        lines.append(keep_usual(row, f"{time} per reference predicted, {baseline} simulated"))
    else:
        lines.append(
            f"{size}: {time} per reference predicted, "
            f"{units.percent(row['gain'])} less than with 4 KiB; "
            f"{units.duration(row['simulated_ns'])} simulated, {baseline} with 4 KiB."
        )
    lines.append(LIMITS[row["limit"]])
    if row["regret"] > 0.0005:
        lines.append(
            f"In the simulation {units.size(row['best_page_bytes'])} is best: the advised size "
            f"takes {units.percent(row['regret'])} more time."
        )
    error = row["left_out_error"]
    text = "unknown" if error is None else "below 0.1 %" if error < 0.0005 else units.percent(error)
    lines.append(
        f"Confidence {row['confidence']}: error at a held-out page size {text} ({row['model']})."
    )
    if row["settable_page_bytes"] != row["advised_page_bytes"]:
        price = row["settable_price"]
        sign = "+" if price >= 0 else "-"
        reason = (
            "no x86-64 or arm64 kernel offers less than 4 KiB"
            if row["advised_page_bytes"] < USUAL_PAGE
            else f"{row['arch']} cannot set {size}"
        )
        lines.append(
            f"Set {units.size(row['settable_page_bytes'])}, {sign}{units.percent(abs(price))} "
            f"time: {reason}."
        )
    return " ".join(lines)


def keep_usual(row: Advice, cost: str) -> str:
    """Why 4 KiB, in a sentence; ``cost``: the time with 4 KiB, in words."""
    if row["model_page_bytes"] == USUAL_PAGE:
        return f"4 KiB is predicted to be best: {cost}."
    size, error = units.size(row["model_page_bytes"]), row["gain_error"]
    if error is not None and row["model_gain"] <= error:
        gain = units.percent(row["model_gain"])
        reason = f"gain {gain}, which is within the error ({in_points(error)})"
    else:
        reason = f"be fastest, but to gain less than {units.percent(row['min_gain'])}"
    return f"Stay at 4 KiB ({cost}): {size} is predicted to {reason}."
