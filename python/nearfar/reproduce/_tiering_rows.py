"""Rows of the tiering papers: quartiles of runs, and published values against ours."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypedDict, cast

import numpy as np

from nearfar.declared import reproduce as declared
from nearfar.declared import tiering as tiering_declared
from nearfar.policy import Knobs
from nearfar.reproduce import published as text_of
from nearfar.reproduce import within_tolerance
from nearfar.strict import Json

Progress = Callable[[int], None] | None


class Options(TypedDict, total=False):
    """Options of the study ``tiering``."""

    workload: str
    scale: str
    threads: int
    progress: Progress
    points: int
    seeds: int
    mix: str
    pattern: str
    placement: str
    rounds: int
    machine: str
    fast: str
    share: str
    slow: str
    rss: str
    wss: str
    cost_scale: float
    knobs: Knobs


def published(name: str) -> Json:
    """The data of ``papers/003/NAME.toml``.

    Raises:
        NearfarError: there is no such file.
    """
    return tomllib.loads(text_of(f"003/{name}"))


def column(row: tiering_declared.Row, name: str) -> float:
    """A number of a row, by its name."""
    return cast("Mapping[str, float]", row)[name]


Box = tuple[float, float, float]


def box(values: list[float]) -> Box:
    """Lower quartile, median, upper quartile."""
    low, median, high = (float(value) for value in np.quantile(values, (0.25, 0.5, 0.75)))
    return low, median, high


def boxes(nomad: Box, ssp: Box) -> str:
    """A note with both interquartile ranges, as measured: not scaled to the paper's size."""
    return ", ".join(
        f"{name} quartiles {low:,.0f} to {high:,.0f}"
        for name, (low, _, high) in (("NOMAD", nomad), ("SSP", ssp))
    )


def over(ssp: float, nomad: float) -> float:
    """``ssp / nomad``; 1 if both are 0."""
    return ssp / nomad if nomad else (1.0 if not ssp else float("inf"))


def share(scale: str) -> float:
    """The number of a scale such as ``1/64``."""
    return float(Fraction(scale))


def row_of(
    paper: str,
    item: str,
    value: float | str,
    ours: float,
    tolerance: str,
    unit: str,
    note: str = "",
) -> declared.Row:
    """A row; :func:`~nearfar.reproduce.within_tolerance` computes ``holds``."""
    return {
        "paper": paper,
        "item": item,
        "published": value,
        "ours": float(f"{ours:.4g}"),
        "unit": unit,
        "tolerance": tolerance,
        "holds": within_tolerance(value, ours, tolerance),
        "note": note,
        "input": "",
    }
