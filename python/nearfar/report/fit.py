"""Fitted models as a text table."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.advise.measured import Decision
from nearfar.declared import fit as declared
from nearfar.fit import Fits
from nearfar.models import FitDict
from nearfar.report.cells import optional
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
            optional(fit["r2"]),
            fit["formula"],
            ", ".join(f"{name} {optional(v)}" for name, v in fit["coefficients"].items()),
        ]
        for fit in fits
    ]
    heads = ["rate", "memory", "verdict", "R2", "model", "coefficients"]
    table = listing(f"Fitted models, p: page size in {fits[0]['page_unit']}", heads, rows)
    return Group(Text(f"Fits: {', '.join(verdicts)}.", style="bold"), Text(""), table)


def decision(result: Decision) -> RenderableType:
    """The page size for each memory size and storage, and the times that it is based on."""
    lines, rows = [], []
    for row in result.rows:
        memory = memory_label(row["memory_bytes"], row["memory_fraction"])
        error = "" if row["error"] is None else units.percent(row["error"])
        if row["chosen"]:
            lines.append(Text(_chosen(row, memory), style="bold"))
        rows.append(
            [
                memory,
                row["storage"],
                units.size(row["page_bytes"]),
                units.duration(row["time_ns"]),
                optional(row["gain"], units.percent),
                "measured" if row["measured"] else f"within {error}" if error else "unknown",
                "*" if row["chosen"] else "",
            ]
        )
    heads = ["memory", "storage", "page", "time", "gain", "error", "chosen"]
    title = f"Time of a reference on {result.machine}"
    return Group(*lines, Text(""), listing(title, heads, rows))


def _chosen(row: declared.DecisionRow, memory: str) -> str:
    where = f"{row['storage']}, memory {memory}" if memory else row["storage"]
    saved = f", {units.percent(row['gain'])} less than with 4 KiB" if row["gain"] else ""
    measured = " (measured)" if row["measured"] else ""
    error = (
        f"; predictions of left-out measured sizes err by at most {units.percent(row['error'])}"
        if row["error"]
        else ""
    )
    time = units.duration(row["time_ns"])
    return f"{where}: {units.size(row['page_bytes'])} pages, {time}{saved}{measured}{error}."


def _name(fit: FitDict) -> str:
    memory = memory_label(fit["memory_bytes"], fit["memory_fraction"])
    return f"{_NAMES[fit['quantity']]} {memory}".rstrip()


def memory_label(size: int | None, fraction: float | None) -> str:
    """The memory size of a fit, as it was given; empty if it applies to all sizes."""
    if fraction is not None:
        return units.percent(fraction)
    return "" if size is None else units.size(size)
