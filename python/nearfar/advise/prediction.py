"""Predicts the time per reference at every page size from rates that are known at some.

:func:`predict` takes rates that were measured or simulated at a few page sizes and returns times at
all of them; :func:`choose_sizes` picks the sizes to measure next. Neither sees any other rate. The
engine computes times from rates (``AccessTimes``); only the rates are predicted here.

**The papers' formulas** (a power law for TLB misses, two exponentials for faults: papers 000 and
001) are used if their time is within :data:`PAPER_TOLERANCE` of the known time at every known size,
and more sizes are known than the formulas have coefficients. The time decides, not the error of a
rate: on a disk, a tenth of a percent more faults can double the time.

**Otherwise the bridge** interpolates linearly between the logarithms of the known rates, within
limits that hold for any program:

* A larger page never misses the TLB more often: merging pages lengthens no LRU stack distance, so
  a hit stays a hit.
* With d(p) page faults per reference at page size p, the bytes read, p d(p), do not fall as p
  grows, because two faults on the halves of a page read as much as one on the page:
  d(2p) >= d(p) / 2 (exact for optimal replacement, nearly so for CLOCK and LRU).
* Every page faults at least once: d(p) >= pages(p) / references. pages(p) is smooth in p, so it is
  interpolated.
* A TLB of N entries and a memory of N frames are the same cache. At the page size p = memory / N
  the fault rate is therefore about the TLB miss rate, which is known or smooth. This adds a point
  to the fault curve, often near the size where frames run out. At larger pages, with fewer frames
  than entries, faults are at least as frequent as TLB misses.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from nearfar import machine as machines
from nearfar import units
from nearfar.declared import paging as declared
from nearfar.errors import NearfarError
from nearfar.models import MODELS, QUANTITIES, Fit, fit
from nearfar.paging_findings import USUAL_PAGE
from nearfar.sizes import parse_page_sizes

Array = npt.NDArray[np.float64]

MODEL_CHOICES: Final = {
    "auto": "the papers' formulas (power law, exponentials) where they fit, else `bridge`",
    "papers": "always the papers' formulas",
    "bridge": "interpolation between known page sizes, within limits that hold for any program",
}
#: Largest relative error of the papers' formulas at a known size. Two times that are off by this
#: much in opposite directions cost 2 % of regret.
PAPER_TOLERANCE: Final = 0.01
#: Known sizes that the papers' formulas need: more than two exponentials have coefficients (4).
PAPER_POINTS: Final = 6
#: A size with an unknown time is chosen only if the best known time is this share above its
#: prediction.
CAUTION: Final = 0.3
#: The first two sizes to measure. If 4 KiB pages fault more than :data:`THRASHES` times per page,
#: the second is the smallest size instead.
FIRST: Final = (USUAL_PAGE, 65536)
THRASHES: Final = 8.0
#: To choose the next size to measure: weight of a time's lower bound against its prediction.
HOPE: Final = 0.7

#: Lower bound of rates, so that they have a logarithm.
_MIN_RATE: Final = 1e-12
#: Lowest and highest slope of log rate, or of log pages, by log size outside the known sizes.
#: Half as many pages would be -1.
_PAGES_SLOPES: Final = (-0.8, -0.8)
_MISS_SLOPES: Final = (-1.5, 0.0)
_FAULT_SLOPES: Final = (-1.0, 3.0)
#: Within this many doublings of a known size, the TLB adds no point to the fault curve.
_NEAR: Final = 0.5


@dataclass(frozen=True)
class Point:
    """Known rates at one page size, per reference.

    Attributes:
        page_bytes: the page size.
        misses: TLB misses that walk the page table.
        second: first-level TLB misses that hit the second level.
        faults: page faults.
        pages: distinct pages divided by references.
    """

    page_bytes: int
    misses: float
    second: float
    faults: float
    pages: float


def points_of(rows: Iterable[declared.Row]) -> list[Point]:
    """The points of rows of a paging study with one memory size, smallest page first.

    Rows that differ only in storage have the same rates and give one point.
    """
    points = {
        row["page_bytes"]: Point(
            row["page_bytes"],
            row["tlb_miss_rate"],
            row["tlb_second_hits"] / row["references"],
            row["fault_rate"],
            row["pages"] / row["references"],
        )
        for row in rows
    }
    return [points[size] for size in sorted(points)]


@dataclass(frozen=True)
class Costs:
    """Costs of a TLB miss and of a page fault on one storage of a machine.

    Attributes:
        times: access times of the machine, which compute T_A and T_D from rates.
        io_ns: time to read a page, nanoseconds, by page size.
    """

    times: machines.AccessTimes
    io_ns: Mapping[int, float]

    @classmethod
    def of(cls, machine: machines.Machine, storage: str, sizes: Sequence[int]) -> Costs:
        """Read the costs of a storage from its machine.

        Raises:
            NearfarError: the machine has no such storage, no TLB or no DRAM.
        """
        io_ns = dict(zip(sizes, machine.io_ns(storage, sizes), strict=True))
        return cls(machine.access_times(), io_ns)

    def translation(self, misses: Array, second: Array) -> Array:
        """T_A: time of address translation, nanoseconds."""
        return np.array(self.times.translation_ns(misses.tolist(), second.tolist()))

    def data(self, sizes: Sequence[int], faults: Array) -> Array:
        """T_D: time of the data, nanoseconds."""
        return np.array(self.times.data_ns(faults.tolist(), [self.io_ns[size] for size in sizes]))

    def exact(self, points: Sequence[Point]) -> tuple[Array, Array]:
        """T_A and T_D at known sizes."""
        return (
            self.translation(_column(points, "misses"), _column(points, "second")),
            self.data([point.page_bytes for point in points], _column(points, "faults")),
        )


@dataclass(frozen=True)
class Prediction:
    """Predicted times per reference, nanoseconds, at ``sizes``.

    Attributes:
        sizes: page sizes in bytes.
        known: the sizes with known rates.
        translation, data, total: T_A, T_D and their sum at each size.
        low: a lower bound of ``total``.
        model: ``papers``, ``bridge``, or ``machine`` if every size is simulated.
        reason: why that model.
    """

    sizes: tuple[int, ...]
    known: tuple[int, ...]
    translation: Array
    data: Array
    total: Array
    low: Array
    model: str
    reason: str

    def at(self, size: int) -> float:
        """The predicted time at one of the sizes."""
        return float(self.total[self.sizes.index(size)])

    def gain(self, size: int) -> float:
        """The share of the predicted time with 4 KiB pages that a size saves."""
        return 1 - self.at(size) / self.at(USUAL_PAGE)

    def best(self, among: Sequence[int]) -> int:
        """The size of ``among`` with the least time.

        Sizes outside the known range are not chosen, and unknown times are raised by
        :data:`CAUTION`. If all of ``among`` are outside, the size nearest to the usual page.
        """
        inside = [size for size in among if min(self.known) <= size <= max(self.known)]

        def rank(size: int) -> tuple[float, float]:
            caution = 1.0 if size in self.known else 1.0 + CAUTION
            return caution * self.at(size), doublings(size)

        return min(inside or [min(among, key=doublings)], key=rank)


def doublings(size: int) -> float:
    """Distance of a page size from the usual one; it decides between equal times."""
    return abs(float(np.log2(size / USUAL_PAGE)))


def predict(
    points: Sequence[Point],
    sizes: Sequence[int],
    costs: Costs,
    memory_bytes: int,
    tlb: str = "64",
    model: str = "auto",
) -> Prediction:
    """Predict the time per reference at ``sizes`` from the known rates of ``points``.

    Args:
        points: known rates, smallest page first, at least one.
        sizes: page sizes in bytes, ascending; ``costs`` must have an I/O time for each.
        costs: of the machine and storage.
        memory_bytes: the memory size of the fault rates.
        tlb: the TLB of the miss rates, as ``nearfar paging --tlb`` takes it.
        model: one of :data:`MODEL_CHOICES`.

    Raises:
        NearfarError: unknown model, or too few points for ``model="papers"``.
    """
    check_model(model)
    rates = _bridge(points, sizes, memory_bytes, _entries(tlb))
    papers, reason = model == "papers", "requested"
    if model == "auto":
        if len(points) < PAPER_POINTS:
            reason = f"{len(points)} sizes known; the papers' formulas need {PAPER_POINTS}"
        elif any(point.second for point in points):
            reason = "the papers' formulas do not model a second TLB level"
        else:
            papers, reason = _judge_papers(tuple(points), costs)
    if papers:
        misses, faults = _fit_papers(tuple(points))
        at = np.array(sizes, dtype=np.float64)
        rates = replace(
            rates, misses=misses.predict(at), second=np.zeros(len(at)), faults=faults.predict(at)
        )
    translation = costs.translation(rates.misses, rates.second)
    data = costs.data(sizes, rates.faults)
    total = translation + data
    low = costs.translation(rates.low_misses, np.zeros(len(sizes)))
    low = np.minimum(low + costs.data(sizes, rates.low_faults), total)
    known = tuple(point.page_bytes for point in points)
    used = "papers" if papers else "bridge"
    return Prediction(tuple(sizes), known, translation, data, total, low, used, reason)


def check_model(model: str) -> None:
    """Raise a :class:`NearfarError` if ``model`` is not one of :data:`MODEL_CHOICES`."""
    if model not in MODEL_CHOICES:
        raise NearfarError(
            f"--model: {model[:40]!r} is not a model; choose one of {', '.join(MODEL_CHOICES)}"
        )


def shown_sizes(sizes: str, tried: Sequence[int]) -> list[int] | int:
    """The page sizes that the model sees, or how many it may choose."""
    text = sizes.strip()
    if text == "all":
        return sorted(tried)
    if text.isdigit() and 0 < int(text) < 64:
        return int(text)
    try:
        shown = sorted(set(parse_page_sizes(text)))
    except NearfarError as error:
        shown, reason = [0], str(error).partition(": ")[2]
    else:
        reason = f"{text[:60]!r} has a size that is not a power of two from 64 bytes to 1 TiB"
    if any(size.bit_count() != 1 or not 64 <= size <= 1 << 40 for size in shown):
        raise NearfarError(f"--sizes: {reason}; give such as 512,4K,64K,2M, `all`, or 4")
    return shown


def choose_sizes(
    known: Mapping[int, Point],
    count: int,
    sizes: Sequence[int],
    costs: Costs,
    memory_bytes: int,
    tlb: str = "64",
) -> list[int]:
    """The ``count`` sizes to measure, one after another, to find the best page.

    Starts with :data:`FIRST`, then takes the size of least weighted time (:data:`HOPE`). Each step
    sees only the points that earlier steps chose, although ``known`` may hold more.

    Returns:
        The sizes in the order in which they were chosen.
    """

    def nearest(wanted: int) -> int:
        return min(known, key=lambda size: abs(float(np.log2(size / wanted))))

    chosen = [nearest(FIRST[0])]
    usual = known[chosen[0]]
    second = min(known) if usual.faults > THRASHES * usual.pages else nearest(FIRST[1])
    if count > 1 and second not in chosen:
        chosen.append(second)
    while len(chosen) < min(count, len(known)):
        points = [known[size] for size in sorted(chosen)]
        prediction = predict(points, sizes, costs, memory_bytes, tlb, "bridge")
        weighted = prediction.total ** (1 - HOPE) * prediction.low**HOPE
        times = dict(zip(prediction.sizes, weighted.tolist(), strict=True))
        rest = [size for size in sizes if size in known and size not in chosen]
        chosen.append(min(rest, key=lambda size: times[size]))
    return chosen


def left_out_error(
    points: Sequence[Point], size: int, costs: Costs, memory_bytes: int, tlb: str = "64"
) -> float | None:
    """The largest relative error of the bridge at held-out known sizes near ``size``.

    Held out in turn: the known size nearest to ``size`` and its neighbours, except the smallest and
    largest. None with fewer than 4 points.
    """
    if len(points) < 4:
        return None
    nearest = min(range(len(points)), key=lambda i: abs(np.log2(points[i].page_bytes / size)))
    largest = 0.0
    for index in range(max(1, nearest - 1), min(len(points) - 1, nearest + 2)):
        translation, data = costs.exact([points[index]])
        time = from_others(points, points[index].page_bytes, costs, memory_bytes, tlb)
        largest = max(largest, abs(time / float((translation + data)[0]) - 1))
    return largest


def from_others(
    points: Sequence[Point],
    size: int,
    costs: Costs,
    memory_bytes: int,
    tlb: str = "64",
    model: str = "bridge",
) -> float:
    """The time at a known size, predicted from the other known sizes (at least one).

    If they are too few for the papers' formulas, the bridge is used.
    """
    others = [point for point in points if point.page_bytes != size]
    if len(others) < PAPER_POINTS:
        model = "bridge"
    return predict(others, [size], costs, memory_bytes, tlb, model).at(size)


# --- the papers' formulas


@functools.lru_cache(maxsize=4096)
def _fit_papers(points: tuple[Point, ...]) -> tuple[Fit, Fit]:
    """Fits of TLB misses and of faults; cached, because they do not depend on the storage."""
    sizes = [point.page_bytes for point in points]
    misses = fit("tlb", sizes, [point.misses for point in points])
    faults = fit("fault", sizes, [point.faults for point in points])
    return misses, faults


def _judge_papers(points: tuple[Point, ...], costs: Costs) -> tuple[bool, str]:
    """Whether the papers' formulas hold, and why (not)."""
    sizes = [point.page_bytes for point in points]
    misses, faults = _fit_papers(points)
    predicted = costs.translation(misses.predict(sizes), np.zeros(len(sizes)))
    predicted = predicted + costs.data(sizes, faults.predict(sizes))
    translation, data = costs.exact(points)
    errors = np.abs(predicted / (translation + data) - 1)
    worst = int(np.argmax(errors))
    error = f"{100 * errors[worst]:.2g} %"
    if errors[worst] <= PAPER_TOLERANCE:
        return True, f"the papers' formulas are within {error} of every known time"
    forms = " and ".join(MODELS[QUANTITIES[name]].formula for name in ("tlb", "fault"))
    size = units.size(sizes[worst])
    return False, f"the papers' formulas ({forms}) miss the known time by {error} at {size}"


# --- the bridge


@dataclass(frozen=True)
class _Rates:
    """Predicted rates per reference, and their lower bounds."""

    misses: Array
    second: Array
    faults: Array
    low_misses: Array
    low_faults: Array


def _bridge(
    points: Sequence[Point], sizes: Sequence[int], memory_bytes: int, entries: int
) -> _Rates:
    at = np.log2(np.array(sizes, dtype=np.float64))
    x = np.log2(_column(points, "page_bytes"))
    misses, faults, pages = (_log(_column(points, n)) for n in ("misses", "faults", "pages"))
    second = np.exp2(_line(at, x, _log(_column(points, "second")), (0.0, 0.0)))
    second[second <= 2 * _MIN_RATE] = 0.0  # was 0; `_log` raised it

    # The page size at which the memory has as many frames as the TLB has entries.
    crossing = float(np.log2(memory_bytes / entries))
    knots, heights = x, faults
    if x[0] < crossing < x[-1] and float(np.abs(x - crossing).min()) > _NEAR:
        at_crossing = np.array([crossing])
        height = max(
            float(_line(at_crossing, x, misses, _MISS_SLOPES)[0]),
            float(_line(at_crossing, x, pages, _PAGES_SLOPES)[0]),
        )
        # Bytes read do not fall as pages grow: neither from a smaller known size nor to a larger.
        height = max(height, float((faults - (crossing - x))[x < crossing].max()))
        height = min(height, float((faults + (x - crossing))[x > crossing].min()))
        index = int(np.searchsorted(x, crossing))
        knots, heights = np.insert(x, index, crossing), np.insert(faults, index, height)

    first_faults = _line(at, x, pages, _PAGES_SLOPES)
    upper = np.maximum(first_faults, 0.0)  # log2 of one fault per reference
    likely = np.clip(_line(at, knots, heights, _FAULT_SLOPES), first_faults, upper)
    # With fewer frames than TLB entries, faults are at least as frequent as TLB misses.
    likely_misses = _line(at, x, misses, _MISS_SLOPES)
    likely = np.where(at > crossing, np.maximum(likely, likely_misses), likely)
    for known, height in zip(x, faults, strict=True):
        likely[at == known] = height
    low_faults = np.where(at > crossing, np.maximum(first_faults, likely_misses), first_faults)
    for known, height in zip(x, faults, strict=True):
        bound = np.maximum(low_faults, height - (at - known))  # bytes read do not fall
        low_faults = np.where(at >= known, bound, low_faults)
    low_misses = [misses[x >= size].max(initial=-np.inf) for size in at]
    return _Rates(
        np.exp2(likely_misses),
        second,
        np.exp2(likely),
        np.exp2(low_misses),
        np.exp2(np.minimum(low_faults, likely)),
    )


def _line(at: Array, x: Array, y: Array, slopes: tuple[float, float]) -> Array:
    """Linear interpolation; outside ``x`` with the nearest slope, clipped to ``slopes``.

    A single point is extrapolated with the mean of ``slopes``.
    """
    values = np.interp(at, x, y)
    if len(x) == 1:
        return np.asarray(values + (sum(slopes) / 2) * (at - x[0]), dtype=np.float64)
    for end, next_, beyond in ((0, 1, at < x[0]), (-1, -2, at > x[-1])):
        slope = np.clip((y[next_] - y[end]) / (x[next_] - x[end]), *slopes)
        values[beyond] = y[end] + slope * (at[beyond] - x[end])
    return np.asarray(values, dtype=np.float64)


def _log(rates: Array) -> Array:
    return np.asarray(np.log2(np.maximum(rates, _MIN_RATE)), dtype=np.float64)


def _column(points: Sequence[Point], name: str) -> Array:
    return np.array([getattr(point, name) for point in points], dtype=np.float64)


def _entries(tlb: str) -> int:
    """Entries of the last TLB level: 64 for ``64`` or ``64x4``, 1536 for ``64+1536x12``."""
    match = re.match(r"\d+", tlb.rpartition("+")[2].strip())
    return max(int(match[0]), 1) if match else 64
