"""Least squares for sums of exponentials, many problems at once.

A model is a sum of one or two terms ``coefficient * exp(rate * t)``. For given rates the best
coefficients follow by linear least squares, so only the rates are searched (variable projection): a
grid of plausible pairs, then Levenberg-Marquardt from the best and from a few random pairs.
Problems share the points and differ in their weights: all leave-one-out fits are one search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

#: Maximum of a rate times the distance of neighbouring points: a steeper term would fit one only.
_STEEPEST: Final = math.log(1e6)
#: Starts of a search from the grid, and random ones.
_STARTS: Final = 8
_RANDOM_STARTS: Final = 4
#: Maximum iterations from each start, then from the best result.
_ROUNDS: Final = 60
_FINAL_STEPS: Final = 200


@dataclass(frozen=True)
class _Projection:
    """Best coefficients for given rates, with residuals and Jacobian: B problems of K terms."""

    #: Residual sums of squares, (B,).
    rss: Array
    residuals: Array
    #: Coefficients of the scaled columns, (B, K).
    scaled: Array
    #: Subtracted from the exponent of each column so that its largest value is 1, (B, K).
    shift: Array
    jacobian: Array


def _project(t: Array, y: Array, weights: Array, rates: Array) -> _Projection:
    """Variable projection (Golub and Pereyra), Jacobian as Kaufman shortened it.

    Shapes: t (n,) ascending, y (n,), weights (B, n), rates (B, K) with K 1 or 2.
    """
    present = weights > 0
    first = t[np.argmax(present, axis=1)][:, None]
    last = t[len(t) - 1 - np.argmax(present[:, ::-1], axis=1)][:, None]
    shift = np.where(rates > 0, rates * last, rates * first)
    # The exponent may be positive at points without a weight, which do not count.
    exponent = np.minimum(rates[:, :, None] * t - shift[:, :, None], 0.0)
    columns = np.exp(exponent) * weights[:, None, :]
    target = y * weights
    # Gram-Schmidt, twice for accuracy; a second column that depends on the first is dropped.
    norms = np.linalg.norm(columns[:, 0], axis=1, keepdims=True)
    norms[norms == 0] = 1
    basis = [columns[:, 0] / norms]
    if rates.shape[1] == 2:
        rest = columns[:, 1]
        for _ in range(2):
            rest = rest - basis[0] * _dot(basis[0], rest)
        length = np.linalg.norm(rest, axis=1, keepdims=True)
        size = np.linalg.norm(columns[:, 1], axis=1, keepdims=True)
        alive = length > 1e-11 * np.maximum(size, 1e-300)
        basis.append(np.where(alive, rest / np.where(alive, length, 1), 0))

    def remove(vector: Array) -> Array:
        for direction in basis:
            vector = vector - direction * _dot(direction, vector)
        return vector

    residuals = remove(target)
    scaled = np.zeros_like(rates)
    if rates.shape[1] == 2:
        scaled[:, 1:] = np.where(alive, _dot(basis[1], target) / np.where(alive, length, 1), 0)
        left = target - columns[:, 1] * scaled[:, 1:]
    else:
        left = target
    scaled[:, :1] = _dot(basis[0], left) / norms
    jacobian = np.stack(
        [-remove(t * columns[:, k]) * scaled[:, k : k + 1] for k in range(rates.shape[1])], axis=2
    )
    return _Projection(
        np.einsum("bn,bn->b", residuals, residuals), residuals, scaled, shift, jacobian
    )


def _dot(a: Array, b: Array) -> Array:
    result: Array = np.einsum("bn,bn->b", a, b)[:, None]
    return result


def search(t: Array, y: Array, weights: Array, terms: int, seed: int) -> tuple[Array, Array]:
    """Least-squares coefficients and rates, (problems, terms) each, rates ascending."""
    # Bounds and starts of a problem depend only on the points with a weight.
    weighted = [t[row > 0] for row in weights]
    limits = np.array([bounds(points) for points in weighted])
    starts = np.stack(
        [
            _starts(low, high, points, terms, seed)
            for (low, high), points in zip(limits, weighted, strict=True)
        ]
    )
    problems, count = starts.shape[:2]
    every = starts.reshape(-1, terms)
    rss = _project(t, y, np.repeat(weights, count, axis=0), every).rss.reshape(problems, count)
    # The last starts are random, and always used.
    fixed = count - _RANDOM_STARTS
    best = np.argsort(rss[:, :fixed], axis=1, kind="stable")[:, :_STARTS]
    extra = np.tile(np.arange(fixed, count), (problems, 1))
    picks = np.concatenate((best, extra), axis=1)
    tries = picks.shape[1]
    rates, rss = _descend(
        t,
        y,
        np.repeat(weights, tries, axis=0),
        np.take_along_axis(starts, picks[:, :, None], axis=1).reshape(-1, terms),
        np.repeat(limits, tries, axis=0),
        _ROUNDS,
    )
    winner = np.argmin(rss.reshape(problems, tries), axis=1) + np.arange(problems) * tries
    rates, _ = _descend(t, y, weights, rates[winner], limits, _FINAL_STEPS)
    rates = np.sort(rates, axis=1)
    done = _project(t, y, weights, rates)
    return done.scaled * np.exp(-done.shift), rates


def bounds(t: Array) -> tuple[float, float]:
    """The steepest falling and rising rate that more than one point can show."""
    gaps = np.diff(np.unique(t))
    # exp(300) does not overflow, and no measured curve is that steep.
    return (
        -min(_STEEPEST / gaps[0], 300 / max(abs(t[0]), 1e-300)),
        min(_STEEPEST / gaps[-1], 300 / max(abs(t[-1]), 1e-300)),
    )


def _starts(low: float, high: float, t: Array, terms: int, seed: int) -> Array:
    """Every pair (or single) of plausible rates, then random ones, shape (starts, terms)."""
    span = float(t[-1] - t[0])
    falling = -np.geomspace(min(0.1 / span, -low), -low, 10)[::-1]
    rising = np.geomspace(min(0.1 / span, high), high, 6)
    rates = np.concatenate((falling, [0.0], rising))
    generator = np.random.default_rng(seed)
    falls = generator.random((_RANDOM_STARTS, terms)) < 0.7
    steep = generator.random((_RANDOM_STARTS, terms))
    # Falling rates are log-uniform over the grid's range; rising ones are flatter than the grid's.
    drawn = np.where(falls, falling[-1] * (low / falling[-1]) ** steep, rising[0] * steep)
    if terms == 1:
        return np.concatenate((rates[:, None], drawn))
    first, second = np.triu_indices(len(rates), 1)
    return np.concatenate((np.column_stack((rates[first], rates[second])), np.sort(drawn, axis=1)))


def _descend(
    t: Array, y: Array, weights: Array, rates: Array, limits: Array, rounds: int
) -> tuple[Array, Array]:
    """Levenberg-Marquardt on the rates of every problem, within limits; rates and their rss.

    Shapes: limits (B, 2), lowest and highest rate; the others as :func:`_project`.
    """
    rates = rates.copy()
    now = _project(t, y, weights, rates)
    rss, residuals, jacobian = now.rss.copy(), now.residuals, now.jacobian
    damping = np.full(len(rates), 1e-3)
    for _ in range(rounds):
        normal = np.einsum("bnk,bnl->bkl", jacobian, jacobian)
        gradient = np.einsum("bnk,bn->bk", jacobian, residuals)
        diagonal = np.einsum("bkk->bk", normal).copy()
        floor = np.maximum(diagonal.max(axis=1, keepdims=True) * 1e-14, 1e-300)
        diagonal = np.maximum(diagonal, floor)
        for k in range(rates.shape[1]):
            normal[:, k, k] = diagonal[:, k] * (1 + damping)
        # Scaled to a unit diagonal: the two rates may differ by many orders of magnitude.
        size = np.sqrt(diagonal)
        scaled = normal / (size[:, :, None] * size[:, None, :])
        step = -np.linalg.solve(scaled, (gradient / size)[:, :, None])[:, :, 0] / size
        moved = np.clip(rates + step, limits[:, :1], limits[:, 1:])
        if np.array_equal(moved, rates):
            break
        trial = _project(t, y, weights, moved)
        better = trial.rss < rss
        rates[better] = moved[better]
        gain = np.where(better, rss - trial.rss, 0)
        rss = np.where(better, trial.rss, rss)
        residuals = np.where(better[:, None], trial.residuals, residuals)
        jacobian = np.where(better[:, None, None], trial.jacobian, jacobian)
        damping = np.clip(np.where(better, damping / 5, damping * 4), 1e-15, 1e12)
        stuck = ~better & (damping >= 1e9)
        if bool((stuck | (better & (gain <= 1e-16 * rss))).all()):
            break
    return rates, rss
