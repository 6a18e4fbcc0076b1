"""The page size to use, from rates that were measured at a few page sizes.

``nearfar fit --machine`` prints, for each storage of a machine, the time per reference at the
measured sizes and the powers of two between them, by the papers' equations; and the fastest size.

>>> from nearfar.fit import fit_rows
>>> rates = [(4096, 0.02, 3e-4), (16384, 0.009, 1e-4), (65536, 0.004, 2e-4)]
>>> rows = [dict(page_bytes=p, tlb_miss_rate=m, fault_rate=f) for p, m, f in rates]
>>> made = decide(fit_rows(rows), "desktop-nvm", "nvm-10x")
>>> [row["page_bytes"] for row in made.rows if row["chosen"]]
[4096]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nearfar import machine as machines
from nearfar.advise.prediction import Costs, Point, Prediction, from_others, predict
from nearfar.declared import fit as declared
from nearfar.errors import NearfarError
from nearfar.fit import Fits
from nearfar.models import Fit
from nearfar.paging_findings import USUAL_PAGE
from nearfar.result import Result
from nearfar.sizes import list_of

if TYPE_CHECKING:
    import pyarrow

#: For an unknown memory size: so large that :func:`predict` derives no fault rate from TLB misses.
_UNKNOWN_MEMORY: Final = 1 << 62


@dataclass(frozen=True)
class Decision(Result):
    """The time at each page size, by memory size and storage.

    Attributes:
        fits: the models of the rates.
        machine: its name.
        rows: one for each memory size, storage and page size.
    """

    fits: Fits
    machine: str
    rows: list[declared.DecisionRow]

    shown = "nearfar.report.fit:decision"

    def to_dict(self) -> Mapping[str, object]:
        """The fits and the decision as plain values."""
        return {**self.fits.to_dict(), "machine": self.machine, "decision": self.rows}

    @property
    def table(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``."""
        return declared.DECISION_ROWS.table(self.rows)


def decide(
    fits: Fits, machine: machines.MachineLike, storage: str | Sequence[str] | None = None
) -> Decision:
    """The time of a reference at each page size, and the fastest size.

    Args:
        fits: of measured TLB miss rates and page fault rates.
        machine: its TLB and DRAM times, and its storages.
        storage: names of some of its storages; all by default.

    Raises:
        NearfarError: a rate is missing, fewer than two page sizes have both rates, or the machine
            has no such storage, no TLB or no DRAM.
    """
    described = machines.load(machine)
    wanted = list(described.storages) if storage is None else list_of(storage)
    misses = next((fit for fit in fits if fit.quantity == "tlb"), None)
    faults = [fit for fit in fits if fit.quantity == "fault"]
    if misses is None or not faults:
        raise NearfarError(
            "--machine: advice needs both tlb_miss_rate and fault_rate in the table; add the "
            "missing column"
        )
    rows: list[declared.DecisionRow] = []
    for fault in faults:
        points = _points(misses, fault)
        if len(points) < 2:
            raise NearfarError("--machine: needs both rates at two page sizes or more; add a line")
        for name in wanted:
            rows += _rows(points, fault, Costs.of(described, name, _sizes(points)), name)
    return Decision(fits, described.name, rows)


def _points(misses: Fit, faults: Fit) -> list[Point]:
    """Sizes with both rates; each rate is the mean of its measurements."""
    by_size = [
        {
            size: [rate for other, rate in zip(fit.page_bytes, fit.measured, strict=True)
                   if other == size]
            for size in fit.page_bytes
        }
        for fit in (misses, faults)
    ]  # fmt: skip
    both = sorted(by_size[0].keys() & by_size[1].keys())
    mean = [{size: sum(one[size]) / len(one[size]) for size in both} for one in by_size]
    # Second-level hits and distinct pages were not measured.
    return [
        Point(size, misses=mean[0][size], second=0.0, faults=mean[1][size], pages=0.0)
        for size in both
    ]


def _sizes(points: Sequence[Point]) -> list[int]:
    """The measured sizes and the powers of two between them."""
    known = [point.page_bytes for point in points]
    between = {1 << power for power in range(known[0].bit_length(), known[-1].bit_length())}
    return sorted({*known, *(size for size in between if size < known[-1])})


def _rows(
    points: Sequence[Point], fault: Fit, costs: Costs, storage: str
) -> list[declared.DecisionRow]:
    sizes = _sizes(points)
    memory = fault.memory_bytes or _UNKNOWN_MEMORY
    prediction = predict(points, sizes, costs, memory)
    best = prediction.best(sizes)
    error = _error(points, costs, memory)
    known = {point.page_bytes for point in points}
    return [
        {
            "memory_bytes": fault.memory_bytes,
            "memory_fraction": fault.memory_fraction,
            "storage": storage,
            "page_bytes": size,
            "time_ns": prediction.at(size),
            "gain": _gain(prediction, size),
            "error": 0.0 if size in known else error,
            "measured": size in known,
            "chosen": size == best,
        }
        for size in sizes
    ]


def _gain(prediction: Prediction, size: int) -> float | None:
    return prediction.gain(size) if USUAL_PAGE in prediction.sizes else None


def _error(points: Sequence[Point], costs: Costs, memory: int) -> float | None:
    """Largest relative error at a held-out inner measured size; None without inner sizes."""
    errors = []
    for point in points[1:-1]:
        translation, data = costs.exact([point])
        time = from_others(points, point.page_bytes, costs, memory)
        errors.append(abs(time / float((translation + data)[0]) - 1))
    return max(errors, default=None)
