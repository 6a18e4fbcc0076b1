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
from nearfar.gain_error import gain_error, saving, worthwhile
from nearfar.gain_error import points as in_points
from nearfar.paging_findings import USUAL_PAGE

#: The value of ``model`` in a row.
MODEL: Final = "machine"

#: The largest part of the time, by the name in ``limit``.
_LIMITS: Final = {
    "processor": "instructions",
    "translation": "TLB misses",
    "memory": "cache misses and memory accesses",
    "faults": "page fault handling in the kernel",
    "storage": "storage",
}


def advice(vm: Vm, rows: Sequence[declared.Row]) -> Advice:
    """The row of one VM.

    Args:
        vm: the virtual machine; its trace is not read.
        rows: of the paging study with ``--view machine`` at the memory size and storage of the VM.
    """
    offered = {size.page_bytes: size for size in transparent(vm.arch)}
    rows = sorted(
        (row for row in rows if row["page_bytes"] in offered), key=lambda row: row["page_bytes"]
    )
    sizes = tuple(row["page_bytes"] for row in rows)
    usual = rows[sizes.index(USUAL_PAGE)]
    parts = np.array([(row["translation_ns"], row["data_ns"]) for row in rows], dtype=np.float64)
    translation, data = parts.T
    total = translation + data
    reason = "every size is simulated"
    prediction = Prediction(sizes, sizes, translation, data, total, total, MODEL, reason)
    best = prediction.best(sizes)
    gains = {size: prediction.gain(size) for size in sizes}
    worth = worthwhile(gains, vm.min_gain)
    advised = USUAL_PAGE if worth is None else worth
    chosen = rows[sizes.index(advised)]
    row = new_row(
        vm,
        (chosen["memory_bytes"], chosen["memory_fraction"]),
        prediction,
        Choice(best, advised, offered[advised]),
        sizes,
        (translation, data),
    )
    row["gain_error"] = gain_error(gains[best if worth is None else worth])
    row["limit"] = _limit(chosen)
    row["bloat_bytes"] = (chosen["resident_bytes"] or 0) - (usual["resident_bytes"] or 0)
    row["why"] = _why(row)
    return row


def _limit(row: declared.Row) -> str:
    """The largest part of the time."""
    parts = {
        "processor": row["cpu_ns"] or 0,
        "translation": (row["tlb_ns"] or 0) + (row["walk_ns"] or 0),
        "memory": (row["cache_ns"] or 0) + (row["dram_ns"] or 0),
        "faults": row["fault_ns"] or 0,
        "storage": row["io_ns"] or 0,
    }
    return max(parts, key=lambda name: parts[name])


def _why(row: Advice) -> str:
    """The advice of a row in sentences."""
    time = units.duration(row["predicted_ns"])
    if row["advised_page_bytes"] == USUAL_PAGE:
        lines = [keep_usual(row, f"{time} per reference")]
    else:
        lines = [
            f"{units.size(row['advised_page_bytes'])}: {time} per reference predicted, "
            f"{saving(row['gain'])} less than with 4 KiB."
        ]
    difference = row["model_gain"] - row["gain"]
    if row["advised_page_bytes"] != USUAL_PAGE and difference > 0:
        lines.append(
            f"{units.size(row['model_page_bytes'])} would gain {in_points(difference)} more, "
            "which is within the error."
        )
    lines.append(f"The largest part of the time is {_LIMITS[row['limit']]}.")
    bloat = row["bloat_bytes"] or 0
    if bloat > 0:
        lines.append(f"Private memory grows by {units.size(bloat)}.")
    return " ".join(lines)
