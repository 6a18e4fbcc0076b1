"""Fitted models, and the page sizes chosen from them, as text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.advise.measured import Decision
from nearfar.declared import fit as declared
from nearfar.fit import Fits
from nearfar.models import MODELS, Fit
from nearfar.report.cells import optional
from nearfar.report.fitted import Table
from nearfar.report.tables import listing

_NAMES = {"tlb": "TLB miss rate", "fault": "Page fault rate"}
_STYLES = {"good": "green", "fair": "yellow", "bad": "bold red"}


def fit(result: Fits) -> RenderableType:
    """The verdicts, then each model with its coefficients and the rates that it predicts."""
    if not result:
        return Text("No fits.")
    verdicts = [f"{_NAMES[one.quantity]}{_memory(one)} {one.verdict}" for one in result]
    first = [Text(f"Fits: {'; '.join(verdicts)}.", style="bold")] if len(verdicts) > 1 else []
    return Group(*first, *(part for one in result for part in _fit(one, result)))


def _fit(one: Fit, result: Fits) -> Iterator[RenderableType]:
    formula = f"{_memory(one)}: {MODELS[one.model].formula}, p in KiB"
    yield Text.assemble((_NAMES[one.quantity], "bold"), formula)
    yield Text.assemble((one.verdict, _STYLES[one.verdict]), f": {one.reason}")
    if one.aic is not None:
        yield Text(f"AIC {one.aic:.4g}")
    if not one.coefficients:
        return
    table = Table()
    table.add_column("coefficient")
    table.add_column("value", justify="right")
    table.add_column(f"{100 * one.confidence:g} % interval")
    for coefficient, value in one.coefficients.items():
        pair = one.intervals and one.intervals[coefficient]
        interval = f"{pair[0]:.6g} .. {pair[1]:.6g}" if pair else "not determined"
        table.add_row(coefficient, f"{value:.6g}", interval)
    yield table
    table = Table()
    table.add_columns(("page bytes", "predicted", "measured"), justify="right")
    for size, rate, measured in result.points(one):
        table.add_row(str(size), f"{rate:.6g}", "" if measured is None else f"{measured:.6g}")
    yield table


def _memory(one: Fit) -> str:
    if one.memory_fraction is not None:
        return f", memory {100 * one.memory_fraction:g} %"
    return "" if one.memory_bytes is None else f", memory {one.memory_bytes} bytes"


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


def memory_label(size: int | None, fraction: float | None) -> str:
    """The memory size of a fit, as it was given; empty if it applies to all sizes."""
    if fraction is not None:
        return units.percent(fraction)
    return "" if size is None else units.size(size)
