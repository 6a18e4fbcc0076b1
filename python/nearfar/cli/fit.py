"""``nearfar fit``: fit models of TLB miss rates and page fault rates to measured points."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from nearfar.cli._study import Format, check_format, print_rows
from nearfar.declared import fit as declared
from nearfar.errors import NearfarError
from nearfar.schema import takes

if TYPE_CHECKING:
    from nearfar.fit import Fits
    from nearfar.models import Fit

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar fit --csv measured.csv --machine nvme --predict 8K,32K"}


@takes(declared.OPTIONS)
def run(
    csv: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Table with the columns page_bytes (4096 or 4K), tlb_miss_rate and/or fault_rate "
            "(0 to 1), and optionally memory_bytes or memory_fraction.",
        ),
    ],
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="MACHINE",
            help="Also choose a page size for this machine, from both rates [default: only fit].",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="STORAGES", help="Storages of --machine, comma-separated [default: all]."
        ),
    ] = None,
    output_format: Format = "table",
    **options: Unpack[declared.Options],
) -> None:
    """Fit models to measured TLB miss rates and page fault rates, and choose a page size."""
    from nearfar.fit import fit_csv

    check_format(output_format, hint="")
    if storage is not None and machine is None:
        raise NearfarError("--storage: needs --machine; name the machine of the storage")
    fits = fit_csv(csv, **options)
    decision = None
    if machine is not None:
        from nearfar.advise.measured import decide

        decision = decide(fits, machine, storage)
    if print_rows(decision or fits, output_format):
        return
    for each in fits:
        _print(each, fits)
    if decision is not None:
        from nearfar.report.fit import decision as shown
        from nearfar.report.tables import show

        show(shown(decision))


def _memory(one: Fit) -> str:
    if one.memory_fraction is not None:
        return f", memory {100 * one.memory_fraction:g} %"
    return "" if one.memory_bytes is None else f", memory {one.memory_bytes} bytes"


def _print(one: Fit, fits: Fits) -> None:
    from rich.text import Text

    from nearfar.models import MODELS
    from nearfar.report.fitted import Table
    from nearfar.report.tables import show

    name = {"tlb": "TLB miss rate", "fault": "Page fault rate"}[one.quantity]
    style = {"good": "green", "fair": "yellow", "bad": "bold red"}[one.verdict]
    show(Text.assemble((name, "bold"), f"{_memory(one)}: {MODELS[one.model].formula}, p in KiB"))
    show(Text.assemble((one.verdict, style), f": {one.reason}"))
    if one.aic is not None:
        show(f"AIC {one.aic:.4g}")
    if not one.coefficients:
        return
    table = Table()
    table.add_column("coefficient")
    table.add_column("value", justify="right")
    table.add_column(f"{100 * one.confidence:g} % interval")
    for coefficient, value in one.coefficients.items():
        pair = one.intervals and one.intervals[coefficient]
        table.add_row(
            coefficient,
            f"{value:.6g}",
            f"{pair[0]:.6g} .. {pair[1]:.6g}" if pair else "not determined",
        )
    show(table)
    table = Table()
    for heading in ("page bytes", "predicted", "measured"):
        table.add_column(heading, justify="right")
    for size, rate, measured in fits.points(one):
        table.add_row(str(size), f"{rate:.6g}", "" if measured is None else f"{measured:.6g}")
    show(table)
