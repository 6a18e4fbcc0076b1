"""Fitted models as a text table."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.fit import Fits
from nearfar.models import FitDict
from nearfar.report.tables import listing

_NAMES = {"tlb": "TLB miss rate", "fault": "page fault rate"}


def fit(result: Fits) -> RenderableType:
    """The verdict on each model, and its coefficients."""
    fits = [fit.to_dict() for fit in result]
    if not fits:
        return Text("No fits.")
    verdicts = [f"{_name(fit)} {fit['verdict']}" for fit in fits]
    rows = [
        [
            _NAMES[fit["quantity"]],
            memory_label(fit["memory_bytes"], fit["memory_fraction"]),
            fit["verdict"],
            _digits(fit["r2"]),
            fit["formula"],
            ", ".join(f"{name} {_digits(v)}" for name, v in fit["coefficients"].items()),
        ]
        for fit in fits
    ]
    heads = ["of", "memory", "verdict", "R2", "model", "coefficients"]
    table = listing(f"Fitted models, p: page size in {fits[0]['page_unit']}", heads, rows)
    return Group(Text(f"Fits: {', '.join(verdicts)}.", style="bold"), Text(""), table)


def _digits(value: float | None) -> str:
    return "-" if value is None else units.digits(value)


def _name(fit: FitDict) -> str:
    memory = memory_label(fit["memory_bytes"], fit["memory_fraction"])
    return f"{_NAMES[fit['quantity']]} {memory}".rstrip()


def memory_label(size: int | None, fraction: float | None) -> str:
    """The memory size of a fit, as it was given; empty if it applies to all sizes."""
    if fraction is not None:
        return units.percent(fraction)
    return "" if size is None else units.size(size)
