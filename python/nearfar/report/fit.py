"""Fitted models, made from what ``nearfar fit --format json`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.report.tables import listing

_NAMES = {"tlb": "TLB miss rate", "fault": "page fault rate"}


def fit(found: Mapping[str, Any]) -> RenderableType:
    """How good each model is, and its coefficients."""
    fits = found["fits"]
    if not fits:
        return Text("No fits.")
    verdicts = [f"{_name(one)} {one['verdict']}" for one in fits]
    rows = [
        [
            _NAMES[one["quantity"]],
            _memory(one),
            one["verdict"],
            "-" if one["r2"] is None else units.digits(one["r2"]),
            one["formula"],
            ", ".join(f"{name} {units.digits(v)}" for name, v in one["coefficients"].items()),
        ]
        for one in fits
    ]
    unit = fits[0]["page_unit"]
    heads = ["of", "memory", "verdict", "R2", "model", "coefficients"]
    table = listing(f"Fitted models, p: page size in {unit}", heads, rows)
    return Group(Text(f"Fits: {', '.join(verdicts)}.", style="bold"), Text(""), table)


def _name(one: Mapping[str, Any]) -> str:
    return f"{_NAMES[one['quantity']]} {_memory(one)}".rstrip()


def _memory(one: Mapping[str, Any]) -> str:
    return memory_label(one["memory_bytes"], one["memory_fraction"])


def memory_label(size: int | None, fraction: float | None) -> str:
    """The memory size that a fit is of, as it was given; empty where it is of any."""
    if fraction is not None:
        return units.percent(fraction)
    return "" if size is None else units.size(size)
