"""Fitted curves and measured points of a result's first quantity: the TLB miss or fault rate."""

from __future__ import annotations

import json

from nearfar import units
from nearfar.declared import paging as declared
from nearfar.errors import NearfarError
from nearfar.fit import Fits
from nearfar.models import Fit
from nearfar.report.fit import memory_label
from nearfar.report.html import charts
from nearfar.report.plots import Chart, chart, legend

_AXES = {
    "tlb": declared.ROWS.column("tlb_miss_rate").axis,
    "fault": declared.ROWS.column("fault_rate").axis,
}
#: Number of points of a curve.
_CURVE = 49


def draw(result: Fits) -> Chart:
    """A series for each memory size."""
    shown = [fit for fit in result if fit.quantity == result[0].quantity]
    pages = sorted({size for fit in shown for size in fit.page_bytes})
    if not pages:
        raise NearfarError("plot: the result has no rows to draw")
    spec = charts.rates(pages, len(shown), _AXES[shown[0].quantity], memory=len(shown) > 1)
    if len(shown) > 1:
        names = list(map(_label, shown))
        legend(spec, "series", title="memory", labelExpr=f"{json.dumps(names)}[datum.value]")
    points = [point for series, fit in enumerate(shown) for point in _points(fit, series)]
    curves = [point for series, fit in enumerate(shown) for point in _curve(fit, series, pages)]
    return chart(spec, "Measured and fitted", points=points, curves=curves)


def _label(fit: Fit) -> str:
    return memory_label(fit.memory_bytes, fit.memory_fraction)


def _points(fit: Fit, series: int) -> list[charts.Datum]:
    """The measured points. A rate of 0 has no place on the logarithmic axis: its value is None."""
    fitted = (
        fit.predict(fit.page_bytes).tolist() if fit.coefficients else [None] * len(fit.measured)
    )
    label = _label(fit)
    return [
        {"page": size, "page_label": units.size(size), "value": rate if rate > 0 else None,
         "value_label": units.rate(rate), "series": str(series), "series_label": label,
         "fitted_label": "-" if predicted is None else units.rate(predicted)}
        for size, rate, predicted in zip(fit.page_bytes, fit.measured, fitted, strict=True)
    ]  # fmt: skip


def _curve(fit: Fit, series: int, pages: list[int]) -> list[charts.Datum]:
    if not fit.coefficients:
        return []
    low, high = pages[0], pages[-1]
    steps = [low * (high / low) ** (i / (_CURVE - 1)) for i in range(_CURVE)]
    rates = fit.predict(steps).tolist()
    return [
        {"page": size, "value": rate, "series": str(series), "verdict": fit.verdict}
        for size, rate in zip(steps, rates, strict=True)
        if rate > 0
    ]
