"""Advice with ``--view machine``: every page size is simulated, so no model is needed.

:mod:`nearfar.gain_error` estimates the error of the simulation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from nearfar import units
from nearfar.advise.architectures import transparent
from nearfar.advise.fleet import Vm
from nearfar.advise.one_vm import Advice, Choice, keep_usual, new_row
from nearfar.advise.prediction import Prediction
from nearfar.declared import paging as declared
from nearfar.gain_error import gain_error, saving
from nearfar.gain_error import points as in_points
from nearfar.page_choice import (
    USUAL_PAGE,
    PageChoice,
    choose,
    counted_ns,
    needed_kernel,
    private_bytes,
    start_gain,
    start_sentence,
    start_share,
)

#: Name of the view, and value of ``model`` in its rows.
VIEW: Final = "machine"

#: Words for each value of ``limit``, the largest part of the time.
_LIMITS: Final = {
    "processor": "instructions",
    "translation": "TLB misses",
    "memory": "cache misses and memory accesses",
    "faults": "page fault handling in the kernel",
    "storage": "storage",
}


def advice(vm: Vm, rows: Sequence[declared.Row], whole: bool = False) -> Advice:
    """The row of one VM.

    Args:
        vm: the virtual machine; its trace is not read.
        rows: of the paging study with ``--view machine`` at the memory size and storage of the VM.
        whole: times are of the whole run; otherwise of its part after memory is filled.
    """
    offered = {size.page_bytes: size for size in transparent(vm.arch)}
    rows = sorted(
        (row for row in rows if row["page_bytes"] in offered), key=lambda row: row["page_bytes"]
    )
    sizes = tuple(row["page_bytes"] for row in rows)
    baseline = rows[sizes.index(USUAL_PAGE)]
    translation = np.array([row["translation_ns"] for row in rows], dtype=np.float64)
    total = np.array([counted_ns(row, whole) for row in rows], dtype=np.float64)
    data = total - translation
    reason = "every size is simulated"
    prediction = Prediction(
        sizes, sizes, translation, data, total, low=total, model=VIEW, reason=reason
    )
    choice = choose(rows, whole=whole, min_gain=vm.min_gain)
    best, advised, chosen = prediction.best(sizes), choice.page_bytes, choice.row
    row = new_row(
        vm,
        (chosen["memory_bytes"], chosen["memory_fraction"]),
        prediction,
        Choice(best, advised, offered[advised]),
        sizes,
        (translation, data),
    )
    row["gain_error"] = gain_error(choice.gains[best if advised == USUAL_PAGE else advised])
    row["limit"] = _limit(chosen, whole)
    row["bloat_bytes"] = private_bytes(chosen) - private_bytes(baseline)
    row["start_share"], row["start_gain"] = start_share(baseline), start_gain(chosen, baseline)
    row["why"] = _why(row, choice, start_sentence(rows, choice))
    return row


def _limit(row: declared.Row, whole: bool) -> str:
    """The largest part of the time, which includes filling memory if ``whole``."""
    parts = {
        "processor": row["cpu_ns"] or 0,
        "translation": (row["tlb_ns"] or 0) + (row["walk_ns"] or 0),
        "memory": (row["cache_ns"] or 0) + (row["dram_ns"] or 0),
        "faults": (row["fault_ns"] or 0) + ((row["start_ns"] or 0) if whole else 0),
        "storage": row["io_ns"] or 0,
    }
    return max(parts, key=lambda name: parts[name])


def _why(row: Advice, choice: PageChoice, start: str | None) -> str:
    """The advice of a row in sentences; ``start``: the sentence on filling memory."""
    time = f"{units.duration(row['predicted_ns'])} per reference"
    stays = row["advised_page_bytes"] == USUAL_PAGE
    if stays and choice.refusal is not None:
        lines = [f"Stay at 4 KiB ({time}{choice.when}): {choice.refusal}."]
    elif stays:
        lines = [keep_usual(row, f"{time}{choice.when}")]
    else:
        lines = [
            f"{units.size(row['advised_page_bytes'])}: {time} predicted{choice.when}, "
            f"{saving(row['gain'])} less than with 4 KiB."
        ]
    difference = row["model_gain"] - row["gain"]
    if not stays and choice.refusal is not None:
        lines.append(f"{choice.refusal}.")
    elif not stays and difference > 0:
        lines.append(
            f"{units.size(row['model_page_bytes'])} would gain {in_points(difference)} more, "
            "which is within the error."
        )
    needs = needed_kernel(choice.row)
    if needs is not None:
        lines.append(f"This {needs}.")
    if start is not None:
        lines.append(start)
    lines.append(f"The largest part of the time{choice.when} is {_LIMITS[row['limit']]}.")
    bloat = row["bloat_bytes"] or 0
    if bloat > 0:
        lines.append(f"Private memory grows by {units.size(bloat)}.")
    return " ".join(lines)
