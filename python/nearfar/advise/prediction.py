"""Time per reference at every page size, from rates known at some of them.

:func:`predict` takes what was measured or simulated at a few page sizes and says what a reference
would cost at others; :func:`choose_sizes` says which sizes to measure next. Neither is shown any
other rate.

**The papers' forms** (a power law for TLB misses, two exponentials for faults: 000 and 001)
are used where they hold: where the time per reference that they give is within
:data:`PAPER_TOLERANCE` of the known one at every known size, of which there are more than the forms
have coefficients. A small fit error of a rate is not enough: a tenth of a percent more faults can
double the time on a disk, so it is the time that is judged.

**Otherwise a bridge** joins the known rates by straight lines between logarithms, and keeps to what
holds for any program:

* A larger page never misses the TLB more often: the LRU TLB is a stack, and a hit stays a hit when
  pages are merged. So the miss rate does not rise.
* Bytes brought in, p d(p), do not fall as p grows: what one fault brings in, two faults on its
  halves can bring in as well. So d(2p) >= d(p) / 2 (exact for optimal replacement, nearly so for
  CLOCK and LRU).
* Every page faults at least once: d(p) is never below pages(p) / references, and the number of
  pages is smooth in p.
* A TLB of N entries and a memory of N frames are the same cache. At the page size p = memory / N
  the fault rate is therefore about the TLB miss rate there, which is known or smooth: a further
  point of the fault curve, often the one that tells where too few frames are left. At larger pages,
  where the frames are fewer than the entries, faults are not rarer than TLB misses.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from nearfar import machine as machines
from nearfar import units
from nearfar.declared import paging as declared
from nearfar.errors import NearfarError
from nearfar.models import MODELS, QUANTITIES, fit
from nearfar.paging_findings import USUAL_PAGE

Array = npt.NDArray[np.float64]

#: What ``model`` may be.
MODEL_CHOICES: Final = {
    "auto": "the papers' forms where they hold, else the bridge",
    "papers": "the papers' forms, whatever they do",
    "bridge": "never the papers' forms",
}
#: The papers' forms hold where their time is within this share of the known one at every known
#: size. Two times wrong by as much in opposite directions cost 2 % of regret.
PAPER_TOLERANCE: Final = 0.01
#: Known sizes from which on the two-term exponential (four coefficients) is a fit, not a threading.
PAPER_POINTS: Final = 6
#: An unknown size is preferred only if the best known time is this much above its predicted one.
CAUTION: Final = 0.3
#: Measured first when the sizes are chosen: the usual page, then one 16 times it; or the smallest,
#: where the usual page faults more than :data:`THRASHES` times for each of its pages.
FIRST: Final = (USUAL_PAGE, 65536)
THRASHES: Final = 8.0
#: How much the lowest possible time counts, against the predicted one, for what to measure next.
HOPE: Final = 0.7

#: Below one reference in 10^12 nothing was counted; logarithms need some number.
_LEAST: Final = 1e-12
#: How fast the number of pages falls per doubling outside the known sizes (halving would be -1).
_PAGES_SLOPE: Final = -0.8
#: Slopes of log rate by log size, beyond the known sizes: lowest and highest that are believed.
_MISS_SLOPES: Final = (-1.5, 0.0)
_FAULT_SLOPES: Final = (-1.0, 3.0)
#: Octaves from a known size within which the TLB says nothing new about faults.
_NEAR: Final = 0.5


@dataclass(frozen=True)
class Point:
    """What is known at one page size; rates are per reference.

    Attributes:
        page_bytes: the page size.
        misses: TLB misses that walk the page table.
        second: first-level misses that a second TLB level held.
        faults: page faults.
        pages: distinct pages divided by references.
    """

    page_bytes: int
    misses: float
    second: float
    faults: float
    pages: float


def points_of(rows: Iterable[declared.Row]) -> list[Point]:
    """Points of the rows of a paging study, smallest page first; rows of one memory size.

    A row that differs in its storage only adds nothing.
    """
    found = {
        row["page_bytes"]: Point(
            row["page_bytes"],
            row["tlb_miss_rate"],
            row["tlb_second_hits"] / row["references"],
            row["fault_rate"],
            row["pages"] / row["references"],
        )
        for row in rows
    }
    return [found[size] for size in sorted(found)]


@dataclass(frozen=True)
class Costs:
    """What a miss and a fault cost on one storage of a machine (000 and 001, equations 1 to 3).

    Attributes:
        tlb_ns: a TLB look-up; stlb_ns: what a hit in a second level adds.
        dram_ns: a memory access, and so a page walk.
        io_ns: time to read a page, nanoseconds, by page size.
    """

    tlb_ns: float
    stlb_ns: float
    dram_ns: float
    io_ns: Mapping[int, float]

    @classmethod
    def of(cls, machine: machines.Machine, storage: str, sizes: Sequence[int]) -> Costs:
        """Read the costs of a storage from its machine.

        Raises:
            NearfarError: the machine has no such storage, no TLB or no DRAM.
        """
        times = machine.access_times()
        read = dict(zip(sizes, machine.io_ns(storage, sizes), strict=True))
        return cls(times.tlb_ns, times.stlb_ns or 0.0, times.dram_ns, read)

    def translation(self, misses: Array, second: Array) -> Array:
        """T_A: time to find where a reference's page is, nanoseconds."""
        return self.tlb_ns + second * self.stlb_ns + misses * self.dram_ns

    def data(self, sizes: Sequence[int], faults: Array) -> Array:
        """T_D: time to reach the data, nanoseconds."""
        read = np.array([self.io_ns[size] for size in sizes], dtype=np.float64)
        return self.dram_ns + faults * read

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
        sizes: page sizes in bytes; known: those whose rates were given.
        translation, data, total: T_A, T_D and their sum at each size.
        low: a total that the truth is hardly below.
        model: ``papers``, ``bridge``, or ``machine`` where all of it is simulated; reason: why.
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
        """The share of the usual page's predicted time that a size saves."""
        return 1 - self.at(size) / self.at(USUAL_PAGE)

    def best(self, among: Sequence[int]) -> int:
        """The size to take of ``among``: of least time.

        An unknown one only between known ones, and only for :data:`CAUTION`; where none of
        ``among`` lies between, the one nearest to the usual page.
        """
        inside = [size for size in among if min(self.known) <= size <= max(self.known)]

        def rank(size: int) -> tuple[float, float]:
            # Of equal times the one nearest to the usual page.
            caution = 1.0 if size in self.known else 1.0 + CAUTION
            return caution * self.at(size), abs(float(np.log2(size / USUAL_PAGE)))

        return min(inside or [min(among, key=lambda size: rank(size)[1])], key=rank)


def predict(
    points: Sequence[Point],
    sizes: Sequence[int],
    costs: Costs,
    memory_bytes: int,
    tlb: str = "64",
    model: str = "auto",
) -> Prediction:
    """Predict the time per reference at ``sizes`` from what is known at the sizes of ``points``.

    Args:
        points: known rates, smallest page first, at least one.
        sizes: page sizes in bytes, ascending, that ``costs`` has an I/O time for.
        costs: of the machine and storage.
        memory_bytes: the memory size that the fault rates belong to.
        tlb: the TLB they were measured with, as ``nearfar paging --tlb`` takes it.
        model: one of :data:`MODEL_CHOICES`; ``auto`` takes the papers' forms where they hold.

    Raises:
        NearfarError: unknown model, or too few sizes for the papers' forms where those are asked
            for.
    """
    if model not in MODEL_CHOICES:
        raise NearfarError(
            f"--model: {model[:40]!r} is no model; choose one of {', '.join(MODEL_CHOICES)}"
        )
    rates = _bridge(points, sizes, memory_bytes, _entries(tlb))
    papers, reason = model == "papers", "asked for"
    if model != "auto":
        pass
    elif len(points) < PAPER_POINTS:
        reason = f"{len(points)} sizes known; the papers' forms need {PAPER_POINTS} to be judged"
    elif any(point.second for point in points):
        reason = "the papers' forms know no second TLB level"
    else:
        judged = _judge_paper(tuple(points), costs)
        papers, reason = judged.holds, judged.reason
    if papers:
        misses, faults = _paper(tuple(points))
        at = np.array(sizes, dtype=np.float64)
        zero = np.zeros(len(at))
        rates = _Rates(
            misses.predict(at), zero, faults.predict(at), rates.low_misses, rates.low_faults
        )
    return _price(rates, points, sizes, costs, "papers" if papers else "bridge", reason)


def choose_sizes(
    known: Mapping[int, Point],
    count: int,
    sizes: Sequence[int],
    costs: Costs,
    memory_bytes: int,
    tlb: str = "64",
) -> list[int]:
    """The ``count`` sizes that one would measure, one after another, to find the best page.

    Starts with :data:`FIRST`, then measures where the time may be least, between the predicted time
    and the lowest that is possible (:data:`HOPE`). Each step sees only what was measured before it,
    although ``known`` may hold more.

    Returns:
        The sizes in the order in which they were measured.
    """

    def nearest(wanted: int) -> int:
        return min(known, key=lambda size: abs(float(np.log2(size / wanted))))

    order = [nearest(FIRST[0])]
    usual = known[order[0]]
    second = min(known) if usual.faults > THRASHES * usual.pages else nearest(FIRST[1])
    if count > 1 and second not in order:
        order.append(second)
    while len(order) < min(count, len(known)):
        seen = _bridged([known[size] for size in sorted(order)], sizes, costs, memory_bytes, tlb)
        promise = seen.total ** (1 - HOPE) * seen.low**HOPE
        order.append(
            min(
                (size for size in sizes if size in known and size not in order),
                key=lambda size: float(promise[seen.sizes.index(size)]),
            )
        )
    return order


def left_out_error(
    points: Sequence[Point], size: int, costs: Costs, memory_bytes: int, tlb: str = "64"
) -> float | None:
    """How far the bridge errs where it matters: the largest relative error of the time at a known
    size near ``size`` (it or its known neighbours) when that is left out; None with under 4 points.
    """
    if len(points) < 4:
        return None
    place = min(range(len(points)), key=lambda i: abs(np.log2(points[i].page_bytes / size)))
    inner = range(max(1, place - 1), min(len(points) - 1, place + 2))
    worst = 0.0
    for out in (points[index] for index in inner):
        translation, data = costs.exact([out])
        time = from_others(points, out.page_bytes, costs, memory_bytes, tlb)
        worst = max(worst, abs(time / float((translation + data)[0]) - 1))
    return worst


def from_others(
    points: Sequence[Point],
    size: int,
    costs: Costs,
    memory_bytes: int,
    tlb: str = "64",
    model: str = "bridge",
) -> float:
    """The time at a known size, predicted from the other known ones; at least one other.

    The papers' forms give way to the bridge where too few are left for them.
    """
    rest = [point for point in points if point.page_bytes != size]
    form = model if len(rest) >= PAPER_POINTS else "bridge"
    return predict(rest, [size], costs, memory_bytes, tlb, form).at(size)


# --- the papers' forms


@dataclass(frozen=True)
class _Judged:
    holds: bool
    reason: str


@functools.lru_cache(maxsize=4096)
def _paper(points: tuple[Point, ...]) -> tuple[Any, Any]:
    """Both fits; the same points are priced on many storages."""
    sizes = [point.page_bytes for point in points]
    misses = fit("tlb", sizes, [point.misses for point in points])
    faults = fit("fault", sizes, [point.faults for point in points])
    return misses, faults


def _judge_paper(points: tuple[Point, ...], costs: Costs) -> _Judged:
    sizes = [point.page_bytes for point in points]
    misses, faults = _paper(points)
    answer = costs.translation(misses.predict(sizes), np.zeros(len(sizes)))
    answer = answer + costs.data(sizes, faults.predict(sizes))
    translation, data = costs.exact(points)
    errors = np.abs(answer / (translation + data) - 1)
    worst = int(np.argmax(errors))
    share = f"{100 * errors[worst]:.2g} %"
    if errors[worst] <= PAPER_TOLERANCE:
        return _Judged(True, f"the papers' forms give every known time within {share}")
    forms = " and ".join(MODELS[QUANTITIES[name]].formula for name in ("tlb", "fault"))
    return _Judged(
        False,
        f"the papers' forms ({forms}) miss the known time by {share} at {units.size(sizes[worst])}",
    )


# --- the bridge


@dataclass(frozen=True)
class _Rates:
    misses: Array
    second: Array
    faults: Array
    low_misses: Array
    low_faults: Array


def _bridged(
    points: Sequence[Point], sizes: Sequence[int], costs: Costs, memory_bytes: int, tlb: str
) -> Prediction:
    rates = _bridge(points, sizes, memory_bytes, _entries(tlb))
    return _price(rates, points, sizes, costs, "bridge", "")


def _price(
    rates: _Rates,
    points: Sequence[Point],
    sizes: Sequence[int],
    costs: Costs,
    model: str,
    reason: str,
) -> Prediction:
    translation = costs.translation(rates.misses, rates.second)
    data = costs.data(sizes, rates.faults)
    low = costs.translation(rates.low_misses, np.zeros(len(sizes)))
    low = np.minimum(low + costs.data(sizes, rates.low_faults), translation + data)
    known = tuple(point.page_bytes for point in points)
    total = translation + data
    return Prediction(tuple(sizes), known, translation, data, total, low, model, reason)


def _bridge(
    points: Sequence[Point], sizes: Sequence[int], memory_bytes: int, entries: int
) -> _Rates:
    at = np.log2(np.array(sizes, dtype=np.float64))
    x = np.log2(_column(points, "page_bytes"))
    misses, faults, pages = (_log(_column(points, n)) for n in ("misses", "faults", "pages"))
    second = np.exp2(_line(at, x, _log(_column(points, "second")), (0.0, 0.0)))
    second[second <= 2 * _LEAST] = 0.0

    # The memory as a TLB: frames = entries at this page size.
    same = float(np.log2(memory_bytes / entries))
    knots, heights = x, faults
    if x[0] < same < x[-1] and float(np.abs(x - same).min()) > _NEAR:
        there = np.array([same])
        height = max(
            float(_line(there, x, misses, _MISS_SLOPES)[0]), float(_pages(there, x, pages)[0])
        )
        # Bytes brought in do not fall from the size before, nor to the size after.
        height = max(height, float((faults - (same - x))[x < same].max()))
        height = min(height, float((faults + (x - same))[x > same].min()))
        place = int(np.searchsorted(x, same))
        knots, heights = np.insert(x, place, same), np.insert(faults, place, height)

    least = _pages(at, x, pages)
    likely = np.clip(_line(at, knots, heights, _FAULT_SLOPES), least, np.maximum(least, 0.0))
    # With fewer frames than the TLB has entries, faults are not rarer than TLB misses.
    short = _line(at, x, misses, _MISS_SLOPES)
    likely = np.where(at > same, np.maximum(likely, short), likely)
    # What is known stays as it is known.
    for place, height in zip(x, faults, strict=True):
        likely[at == place] = height
    fewest = np.where(at > same, np.maximum(least, short), least)
    for place, height in zip(x, faults, strict=True):
        fewest = np.where(at >= place, np.maximum(fewest, height - (at - place)), fewest)
    rarest = np.array([max((m for q, m in zip(x, misses, strict=True) if q >= a), default=-np.inf)
                       for a in at])  # fmt: skip
    return _Rates(
        np.exp2(_line(at, x, misses, _MISS_SLOPES)),
        second,
        np.exp2(likely),
        np.exp2(rarest),
        np.exp2(np.minimum(fewest, likely)),
    )


def _line(at: Array, x: Array, y: Array, slopes: tuple[float, float]) -> Array:
    """Straight between known points; beyond them on with the last slope, within ``slopes``."""
    answer = np.interp(at, x, y)
    if len(x) == 1:
        return np.asarray(answer + (sum(slopes) / 2) * (at - x[0]), dtype=np.float64)
    for end, next_, beyond in ((0, 1, at < x[0]), (-1, -2, at > x[-1])):
        slope = np.clip((y[next_] - y[end]) / (x[next_] - x[end]), *slopes)
        answer[beyond] = y[end] + slope * (at[beyond] - x[end])
    return np.asarray(answer, dtype=np.float64)


def _pages(at: Array, x: Array, y: Array) -> Array:
    """Logarithm of the distinct pages a reference."""
    answer = np.interp(at, x, y)
    for end, beyond in ((0, at < x[0]), (-1, at > x[-1])):
        answer[beyond] = y[end] + _PAGES_SLOPE * (at[beyond] - x[end])
    return np.asarray(answer, dtype=np.float64)


def _log(rates: Array) -> Array:
    return np.asarray(np.log2(np.maximum(rates, _LEAST)), dtype=np.float64)


def _column(points: Sequence[Point], name: str) -> Array:
    return np.array([getattr(point, name) for point in points], dtype=np.float64)


def _entries(tlb: str) -> int:
    """Entries of the last level of ``64``, ``64x4`` or ``64+1536x12``."""
    found = re.match(r"\d+", tlb.rpartition("+")[2].strip())
    return max(int(found[0]), 1) if found else 64
