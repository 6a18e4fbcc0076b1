"""Fitted curves through what was measured, of the first quantity."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from nearfar import units
from nearfar.declared import paging as declared
from nearfar.errors import NearfarError
from nearfar.report.fit import memory_label
from nearfar.report.html import charts
from nearfar.report.plots import chart, legend

if TYPE_CHECKING:
    from nearfar.fit import Fits
    from nearfar.models import Fit

_AXES = {
    "tlb": declared.ROWS.column("tlb_miss_rate").axis,
    "fault": declared.ROWS.column("fault_rate").axis,
}
#: Points of a curve between the smallest and largest page size.
_CURVE = 49


def draw(result: Fits) -> Any:
    """A series for each memory size."""
    shown = [one for one in result if one.quantity == result[0].quantity] if result else []
    pages = sorted({size for one in shown for size in one.page_bytes})
    if not pages:
        raise NearfarError("plot: the result has no rows to draw")
    spec = charts.rates(pages, len(shown), _AXES[shown[0].quantity], len(shown) > 1)
    if len(shown) > 1:
        names = [_label(one) for one in shown]
        legend(spec, "series", title="memory", labelExpr=f"{json.dumps(names)}[datum.value]")
    points = [point for series, one in enumerate(shown) for point in _points(one, series)]
    curves = [point for series, one in enumerate(shown) for point in _curve(one, series, pages)]
    return chart(spec, "Measured and fitted", points=points, curves=curves)


def _label(one: Fit) -> str:
    return memory_label(one.memory_bytes, one.memory_fraction)


def _points(one: Fit, series: int) -> list[charts.Datum]:
    fitted = (
        one.predict(one.page_bytes).tolist() if one.coefficients else [None] * len(one.measured)
    )
    label = _label(one)
    return [
        {"page": size, "page_label": units.size(size), "value": rate if rate > 0 else None,
         "value_label": units.rate(rate), "series": str(series), "series_label": label,
         "fitted_label": "-" if fit is None else units.rate(fit)}
        for size, rate, fit in zip(one.page_bytes, one.measured, fitted, strict=True)
    ]  # fmt: skip


def _curve(one: Fit, series: int, pages: list[int]) -> list[charts.Datum]:
    if not one.coefficients:
        return []
    low, high = pages[0], pages[-1]
    steps = [low * (high / low) ** (i / (_CURVE - 1)) for i in range(_CURVE)]
    rates = one.predict(steps).tolist()
    return [
        {"page": size, "value": rate, "series": str(series), "verdict": one.verdict}
        for size, rate in zip(steps, rates, strict=True)
        if rate > 0
    ]
