"""Advice by ``--view machine``: every page size is simulated, and no model stands between.

What may be wrong is the simulation itself: :mod:`nearfar.gain_error`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from nearfar import units
from nearfar.advise.architectures import transparent
from nearfar.advise.fleet import Vm
from nearfar.advise.one_vm import Advice, Choice, filled, staying
from nearfar.advise.prediction import Prediction
from nearfar.declared import paging as declared
from nearfar.gain_error import gain_error, worthwhile
from nearfar.gain_error import points as in_points
from nearfar.paging_findings import USUAL_PAGE

#: What ``model`` of a row says.
MODEL: Final = "machine"

#: What the time goes to, as ``limit`` names it: columns of the study, and a sentence.
_LIMITS: Final = {
    "processor": (("cpu_ns",), "instructions"),
    "translation": (("tlb_ns", "walk_ns"), "TLB misses"),
    "memory": (("cache_ns", "dram_ns"), "caches and memory"),
    "faults": (("fault_ns",), "the kernel's part of page faults"),
    "storage": (("io_ns",), "storage"),
}


def advice(vm: Vm, rows: Sequence[declared.Row]) -> Advice:
    """The row of one VM.

    Args:
        vm: the machine; its trace is not read.
        rows: of the paging study with ``--view machine``, with the memory size and the storage of
            the VM.
    """
    offered = {one.page_bytes: one for one in transparent(vm.arch)}
    rows = sorted(
        (row for row in rows if row["page_bytes"] in offered), key=lambda row: row["page_bytes"]
    )
    sizes = tuple(row["page_bytes"] for row in rows)
    usual = rows[sizes.index(USUAL_PAGE)]
    parts = np.array([(row["translation_ns"], row["data_ns"]) for row in rows], dtype=np.float64)
    translation, data = parts.T
    total = translation + data
    reason = "every size is simulated"
    answer = Prediction(sizes, sizes, translation, data, total, total, MODEL, reason)
    best = answer.best(sizes)
    gains = {size: answer.gain(size) for size in sizes}
    worth = worthwhile(gains, vm.min_gain)
    advised = USUAL_PAGE if worth is None else worth
    chosen = rows[sizes.index(advised)]
    row = filled(
        vm,
        (chosen["memory_bytes"], chosen["memory_fraction"]),
        answer,
        Choice(best, advised, offered[advised]),
        sizes,
        (translation, data),
    )
    row["gain_error"] = gain_error(gains[best if worth is None else worth])
    spent: Mapping[str, Any] = chosen
    row["limit"] = max(_LIMITS, key=lambda name: sum(spent[part] for part in _LIMITS[name][0]))
    row["bloat_bytes"] = (chosen["resident_bytes"] or 0) - (usual["resident_bytes"] or 0)
    row["why"] = _why(row)
    return row


def _why(row: Advice) -> str:
    """The advice of a row in a few plain sentences."""
    time = units.duration(row["predicted_ns"])
    if row["advised_page_bytes"] == USUAL_PAGE:
        lines = [staying(row, f"{time} per reference")]
    else:
        lines = [
            f"{units.size(row['advised_page_bytes'])}: predicted {time} per reference, "
            f"{units.percent(row['gain'])} less than 4 KiB, give or take "
            f"{in_points(row['gain_error'] or 0)}."
        ]
    more = row["model_gain"] - row["gain"]
    if row["advised_page_bytes"] != USUAL_PAGE and more > 0:
        lines.append(
            f"{units.size(row['model_page_bytes'])} is predicted to gain {in_points(more)} more, "
            "which is within the error."
        )
    lines.append(f"The largest part of the time goes to {_LIMITS[row['limit']][1]}.")
    bloat = row["bloat_bytes"] or 0
    if bloat > 0:
        lines.append(f"Private memory grows by {units.size(bloat)}.")
    return " ".join(lines)
