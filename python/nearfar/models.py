"""How TLB miss rate and page fault rate follow from page size.

The formulas are those of two papers: page-size advice (000), and TLB and fault models (001).

========================  ======================  ===========================
model                     formula                 quantity
========================  ======================  ===========================
``power``                 a p^b                   TLB miss rate
``exponential-2``         a e^(bp) + c e^(dp)     page fault rate
``exponential-1``         a e^(bp)                page fault rate, 2-3 sizes
========================  ======================  ===========================

p is the page size **in KiB** in every formula and coefficient (a power fit's ``a`` is the rate at
1 KiB; the rates b and d of an exponential are per KiB). Functions take page sizes in bytes.

Each model is a sum of terms ``coefficient * exp(rate * t)``, with t = p or t = ln p, fitted by
:mod:`nearfar.least_squares`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from nearfar import units
from nearfar.errors import NearfarError
from nearfar.least_squares import bounds, search
from nearfar.strict import Json

Array = npt.NDArray[np.float64]

KIB: Final = 1024.0
CONFIDENCE: Final = 0.95

#: Limits of a fit: minimum R2; maximum error of held-out sizes, as a share of the range (root mean
#: square) and of their own value (mean). The last matters because a small rate at a large page is
#: multiplied by a long transfer.
GOOD: Final = (0.95, 0.15, 0.25)
FAIR: Final = (0.80, 0.40, 0.75)
#: A fit with every point within this share of its value is good, whatever R2: flat data have no
#: variance.
CLOSE: Final = 0.02


@dataclass(frozen=True)
class Model:
    """A sum of ``terms`` exponentials in ``transform(p)``."""

    name: str
    formula: str
    terms: int
    transform: Callable[[Array], Array]
    #: Names of coefficient and rate of each term, in order.
    names: tuple[str, ...]

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return 2 * self.terms


def _identity(p: Array) -> Array:
    return p


MODELS: Final[dict[str, Model]] = {
    model.name: model
    for model in (
        Model("power", "a p^b", 1, lambda p: np.log(p), ("a", "b")),
        Model("exponential-2", "a e^(bp) + c e^(dp)", 2, _identity, ("a", "b", "c", "d")),
        Model("exponential-1", "a e^(bp)", 1, _identity, ("a", "b")),
    )
}

#: Error that the fit minimizes.
WEIGHTINGS: Final = {
    "absolute": "absolute error of each point",
    "relative": "relative error of each point",
}

#: The model of each quantity.
QUANTITIES: Final[dict[str, str]] = {"tlb": "power", "fault": "exponential-2"}


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model fitted to measured or simulated rates, and its quality.

    Attributes:
        quantity: ``tlb`` or ``fault``.
        model: key of :data:`MODELS`.
        coefficients: by name, with p in KiB; empty without a fit.
        intervals: 95 % confidence interval of each coefficient (linearised, Student t); None if the
            data do not determine it.
        page_bytes: page sizes, ascending; measured: their rates.
        r2, adjusted_r2: share of variance explained; None for data without variance.
        rmse: root mean square residual, in rate.
        loo_rmse, loo_mean_relative: leave-one-out error, root mean square in rate and mean relative
            (over rates above zero); None with too few sizes.
        aic: Akaike's criterion for normal residuals, up to a constant; None for an exact fit.
        verdict: ``good``, ``fair`` or ``bad``; reason: why, in a sentence.
        weighting: ``absolute`` or ``relative``; the quality is that of unweighted residuals in both
            cases.
        memory_bytes, memory_fraction: the memory size of the rates, if known.
    """

    quantity: str
    model: str
    coefficients: dict[str, float]
    intervals: dict[str, tuple[float, float]] | None = None
    page_bytes: tuple[int, ...]
    measured: tuple[float, ...]
    r2: float | None = None
    adjusted_r2: float | None = None
    rmse: float | None = None
    loo_rmse: float | None = None
    loo_mean_relative: float | None = None
    aic: float | None = None
    verdict: str
    reason: str
    memory_bytes: int | None = None
    memory_fraction: float | None = None
    weighting: str = "absolute"
    confidence: float = CONFIDENCE

    def predict(self, page_bytes: npt.ArrayLike) -> Array:
        """Rate at each page size (bytes): the value of the formula, within 0 to 1.

        Raises:
            NearfarError: the fit has no coefficients, or a size is not above zero.
        """
        if not self.coefficients:
            raise NearfarError(f"{self.quantity} fit: cannot predict; {self.reason}")
        sizes = np.atleast_1d(np.asarray(page_bytes, dtype=np.float64))
        if not (np.isfinite(sizes).all() and (sizes > 0).all()):
            raise NearfarError("predict: a page size must be above zero; give bytes such as 4096")
        model = MODELS[self.model]
        values = list(self.coefficients.values())
        return np.clip(
            _evaluate(model, np.array(values[::2]), np.array(values[1::2]), sizes), 0.0, 1.0
        )

    def to_dict(self) -> Json:
        """Plain values for JSON: coefficients, intervals, quality, points and fitted values."""
        return {
            "quantity": self.quantity,
            "model": self.model,
            "formula": MODELS[self.model].formula,
            "weighting": self.weighting,
            "page_unit": "KiB",
            "memory_bytes": self.memory_bytes,
            "memory_fraction": self.memory_fraction,
            "coefficients": {name: _finite(value) for name, value in self.coefficients.items()},
            "intervals": self.intervals and {n: list(pair) for n, pair in self.intervals.items()},
            "confidence": self.confidence,
            "r2": self.r2,
            "adjusted_r2": self.adjusted_r2,
            "rmse": self.rmse,
            "loo_rmse": self.loo_rmse,
            "loo_mean_relative": self.loo_mean_relative,
            "aic": self.aic,
            "verdict": self.verdict,
            "reason": self.reason,
            "page_bytes": list(self.page_bytes),
            "measured": list(self.measured),
            "fitted": self.predict(self.page_bytes).tolist() if self.coefficients else None,
        }


def fit(
    quantity: str,
    page_bytes: Sequence[int],
    rates: Sequence[float],
    *,
    model: str | None = None,
    memory_bytes: int | None = None,
    memory_fraction: float | None = None,
    weighting: str = "absolute",
    seed: int = 0,
) -> Fit:
    """Fit the model of ``quantity`` to rates at page sizes by least squares.

    Args:
        quantity: ``tlb`` (power) or ``fault`` (two-term exponential).
        page_bytes: page sizes in bytes, in any order; sizes may repeat.
        rates: the rate at each size, a fraction of references.
        model: another model, a key of :data:`MODELS`. By default, ``fault`` with two or three sizes
            uses ``exponential-1``, and the reason says so.
        memory_bytes: the memory size of the rates, for the result.
        memory_fraction: the memory size as a share, if it was given as one.
        weighting: ``absolute`` weighs all points equally, as the papers' fits do; ``relative``
            divides each error by the measured rate (at least a millionth of the largest).
        seed: seed of the random starts; the result must not depend on it.

    Raises:
        NearfarError: unknown quantity or model, unequal lengths, no points, or a size or rate that
            is negative, not finite or (size) zero.
    """
    if quantity not in QUANTITIES:
        raise NearfarError(f"fit: unknown quantity `{quantity}`; one of {', '.join(QUANTITIES)}")
    if model is not None and model not in MODELS:
        raise NearfarError(f"fit: unknown model `{model}`; one of {', '.join(MODELS)}")
    if weighting not in WEIGHTINGS:
        raise NearfarError(f"fit: unknown weighting `{weighting}`; one of {', '.join(WEIGHTINGS)}")
    sizes, values = _checked(quantity, page_bytes, rates)
    distinct = np.unique(sizes)
    chosen = MODELS[model or QUANTITIES[quantity]]
    short = ""
    if model is None and chosen.terms == 2 and 2 <= len(distinct) < chosen.parameters:
        short = (
            f"only {len(distinct)} page sizes, and two terms need {chosen.parameters}: "
            "one term fitted; "
        )
        chosen = MODELS["exponential-1"]

    result = _solve(chosen, sizes, values, distinct, weighting, seed)
    result["reason"] = short + result["reason"]
    return Fit(
        quantity=quantity,
        model=chosen.name,
        page_bytes=tuple(int(size) for size in sizes),
        measured=tuple(float(value) for value in values),
        memory_bytes=memory_bytes,
        memory_fraction=memory_fraction,
        weighting=weighting,
        **result,
    )


def _checked(
    quantity: str, page_bytes: Sequence[int], rates: Sequence[float]
) -> tuple[Array, Array]:
    if len(page_bytes) != len(rates):
        raise NearfarError(
            f"{quantity} fit: {len(page_bytes)} page sizes but {len(rates)} rates; give one rate "
            f"for each page size"
        )
    if not len(rates):
        raise NearfarError(f"{quantity} fit: no points; give a rate for several page sizes")
    sizes = np.asarray(page_bytes, dtype=np.float64)
    values = np.asarray(rates, dtype=np.float64)
    for size, value in zip(sizes, values, strict=True):
        if not (math.isfinite(size) and 1 <= size <= 2**60):
            raise NearfarError(f"{quantity} fit: page size {size:g}; give bytes, 1 to 2^60")
        if not math.isfinite(value) or value < 0:
            raise NearfarError(
                f"{quantity} fit: rate {value:g} at page size {size:g}; a rate is a number, 0 or "
                "above"
            )
    # Rates below 1e-15 count as 0: denormal numbers would overflow.
    values = np.where(values < 1e-15, 0.0, values)
    order = np.lexsort((values, sizes))
    return sizes[order], values[order]


def _solve(
    model: Model, sizes: Array, values: Array, distinct: Array, weighting: str, seed: int
) -> Json:
    """Coefficients, intervals, quality and verdict as keyword arguments of :class:`Fit`."""
    if np.ptp(values) == 0 and len(distinct) >= model.parameters:
        flat = [values[0], 0.0] + [0.0, 0.0] * (model.terms - 1)
        return {
            "coefficients": dict(zip(model.names, map(float, flat), strict=True)),
            "rmse": 0.0,
            "verdict": "good",
            "reason": f"the rate is {values[0]:g} at every page size",
        }
    if len(distinct) < model.parameters:
        return {
            "coefficients": {},
            "verdict": "bad",
            "reason": f"{len(distinct)} page sizes cannot give {model.parameters} coefficients; "
            f"measure {model.parameters + 1} or more",
        }

    t = model.transform(sizes / KIB)
    scale = float(values.max())
    # Row 0 fits all sizes; row i + 1 leaves out the i-th distinct size, if enough remain.
    leave_one_out = len(distinct) - 1 >= model.parameters
    weights = np.ones((1 + (len(distinct) if leave_one_out else 0), len(sizes)))
    if leave_one_out:
        weights[1:] -= sizes[None, :] == distinct[:, None]
    if weighting == "relative":
        # Zero rates have no relative error, and tiny rates would outweigh all others.
        point = np.maximum(values, 1e-6 * scale)
        weights *= float(np.median(point)) / point
    coefficients, rates = search(t, values / scale, weights, model.terms, seed)
    coefficients = coefficients * scale

    def at(row: int) -> Array:
        return _evaluate(model, coefficients[row], rates[row], sizes)

    residuals = values - at(0)
    count, freedom = len(sizes), len(sizes) - model.parameters
    rss = float(residuals @ residuals)
    # A smaller residual is rounding.
    exact = rss <= (1e-12 * scale) ** 2 * count
    spread = float(np.sum((values - values.mean()) ** 2))
    r2 = 1 - rss / spread if spread > 0 else None
    quality: dict[str, float | None] = {
        "r2": r2,
        "adjusted_r2": 1 - (1 - r2) * (count - 1) / freedom if r2 is not None and freedom else None,
        "rmse": math.sqrt(rss / count),
        "aic": None if exact else count * math.log(rss / count) + 2 * model.parameters,
        "loo_rmse": None,
        "loo_mean_relative": None,
    }
    if leave_one_out:
        errors = np.zeros(count)
        for row in range(1, len(weights)):
            held_out = weights[row] == 0
            errors[held_out] = (values - at(row))[held_out]
        # Extrapolation to a held-out size may overflow.
        with np.errstate(over="ignore"):
            quality["loo_rmse"] = _finite(float(np.sqrt(np.mean(errors**2))))
        positive = values > 0
        relative = np.abs(errors[positive]) / values[positive]
        quality["loo_mean_relative"] = _finite(float(np.mean(relative)))
    intervals = None
    if len(distinct) > model.parameters:
        low, high = bounds(t)
        # At a limit of the search, a term fits one point only: the data do not determine its rate.
        if (rates[0] > low).all() and (rates[0] < high).all():
            intervals = _intervals(
                model, t, coefficients[0], rates[0], residuals, weights[0], freedom
            )
    verdict, reason = _judge(model, values, residuals, quality, len(distinct), intervals)
    pairs = np.column_stack((coefficients[0], rates[0])).ravel()
    return {
        **quality,
        "coefficients": dict(zip(model.names, map(float, pairs), strict=True)),
        "intervals": intervals,
        "verdict": verdict,
        "reason": reason,
    }


def _judge(
    model: Model,
    values: Array,
    residuals: Array,
    quality: Mapping[str, float | None],
    size_count: int,
    intervals: object,
) -> tuple[str, str]:
    if size_count <= model.parameters:
        return "bad", (
            f"{size_count} page sizes for {model.parameters} coefficients: the curve passes "
            f"through them in any case; measure {model.parameters + 1} or more"
        )
    r2, loo = quality["r2"], quality["loo_rmse"]
    share = math.inf if loo is None else loo / float(np.ptp(values))
    relative = quality["loo_mean_relative"]
    relative = math.inf if relative is None else relative
    close = bool((np.abs(residuals) <= CLOSE * values).all())

    def meets(limits: tuple[float, float, float]) -> bool:
        min_r2, max_share, max_relative = limits
        # A TLB miss costs the same at every page size, so the relative error of a small rate hardly
        # matters.
        relative_meets = model.name == "power" or relative <= max_relative
        return bool(r2 is not None and r2 >= min_r2 and share <= max_share and relative_meets)

    if close or meets(GOOD):
        verdict = "good"
    elif meets(FAIR):
        verdict = "fair"
    else:
        verdict = "bad"
    reason = f"R2 {r2:.3f}"
    if math.isfinite(share):
        value = f"{units.digits(100 * relative, 2)} % of"
        if relative >= 10:
            value = f"{units.digits(relative, 2)} times"
        reason += (
            f"; a held-out page size is predicted within {units.digits(100 * share, 2)} % of the "
            f"range of rates and {value} its rate"
        )
    if close:
        reason += f"; every point within {100 * CLOSE:.0f} %"
    if not close and relative > FAIR[2]:
        # Only a ``power`` fit can be good here: the others had to meet a stricter limit. Users
        # predict with a "good" fit, so all sizes must be predicted well.
        verdict = "fair" if verdict == "good" else verdict
    fitted = values - residuals
    if (fitted < -0.01 * float(np.ptp(values))).any():
        reason += "; the curve falls below zero at a measured size"
        verdict = "fair" if verdict == "good" else verdict
    if intervals is None:
        reason += "; the data do not determine each coefficient"
    return verdict, reason


def _intervals(
    model: Model,
    t: Array,
    coefficients: Array,
    rates: Array,
    residuals: Array,
    weights: Array,
    freedom: int,
) -> dict[str, tuple[float, float]] | None:
    """Linearised confidence intervals; None when the Jacobian does not determine them."""
    columns = []
    for coefficient, rate in zip(coefficients, rates, strict=True):
        term = np.exp(rate * t) * weights
        columns += [term, coefficient * t * term]
    jacobian = np.column_stack(columns)
    norms = np.linalg.norm(jacobian, axis=0)
    if not np.isfinite(norms).all() or (norms == 0).any():
        return None
    _, singular, rotation = np.linalg.svd(jacobian / norms, full_matrices=False)
    if singular[-1] < 1e-8 * singular[0]:
        return None
    variance = np.sum((rotation / singular[:, None]) ** 2, axis=0) / norms**2
    rss = float(np.sum((weights * residuals) ** 2))
    from scipy import special  # 0.2 s to import

    half = special.stdtrit(freedom, (1 + CONFIDENCE) / 2) * np.sqrt(variance * rss / freedom)
    centre = np.column_stack((coefficients, rates)).ravel()
    return {
        name: (float(middle - width), float(middle + width))
        for name, middle, width in zip(model.names, centre, half, strict=True)
    }


def _evaluate(model: Model, coefficients: Array, rates: Array, sizes: Array) -> Array:
    t = model.transform(sizes / KIB)
    total = np.zeros_like(t)
    for coefficient, rate in zip(coefficients, rates, strict=True):
        # Far outside the data two terms may overflow, and their difference would be NaN.
        total += coefficient * np.exp(np.minimum(rate * t, 600.0))
    return total


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
