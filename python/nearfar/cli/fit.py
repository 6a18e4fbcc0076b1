"""``nearfar fit``: fit models of TLB miss rates and page fault rates to measured points."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import Format, check_format, print_rows
from nearfar.declared import fit as declared
from nearfar.errors import NearfarError
from nearfar.schema import takes

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
    from nearfar.report.tables import show

    show(fits.view())
    if decision is not None:
        show(decision.view())
