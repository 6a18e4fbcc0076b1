"""``nearfar ssd``: a DRAM-interface SSD under policies for embedded page faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nearfar.cli._study import check_format, print_rows

SETTINGS = {
    "epilog": "Example: nearfar ssd app.trace --machine umd --dram 100M,150M --epf none,smart:50us"
}


def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    machine: Annotated[
        str, typer.Option(help="Machine name or file; it needs a [flash] section.")
    ] = "umd",
    dram: Annotated[str, typer.Option(help="Sizes of the device's DRAM.")] = "100M,150M",
    epf: Annotated[
        str, typer.Option(help="Policies for embedded page faults: none, all, smart:TIME.")
    ] = "none,all,smart:50us",
    disk: Annotated[
        str | None,
        typer.Option(help="Storage that files are read from [default: no time for that]."),
    ] = None,
    precondition: Annotated[
        str, typer.Option(help="Share of the flash filled in order, share overwritten at random.")
    ] = "60%,50%",
    sleep_granularity: Annotated[
        str | None,
        typer.Option(help="Threads wake at multiples of this time [default: cost.timer_slack]."),
    ] = None,
    window: Annotated[
        int, typer.Option(min=1, help="References a thread may run ahead of the others.")
    ] = 1 << 20,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of the preconditioning.")] = 1,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: one a core.")] = 0,
    output_format: Annotated[
        str, typer.Option("--format", help="table, json, csv or parquet.")
    ] = "table",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Also write result.parquet and run.json.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing results.")] = False,
) -> None:
    """Replay a program on a DRAM-interface SSD: wait for its flash, or run something else?"""
    from nearfar.cli._progress import progress
    from nearfar.sizes import parse_shares, parse_time
    from nearfar.ssd import ssd, warnings

    check_format(output_format)
    shares = parse_shares(precondition, "--precondition", 2)
    granularity = sleep_granularity
    with progress(f"ssd {trace}") as pulse:
        result = ssd(
            trace,
            machine=machine,
            dram=[size.strip() for size in dram.split(",")],
            epf=[policy.strip() for policy in epf.split(",")],
            disk=disk,
            precondition=(shares[0], shares[1]),
            sleep_granularity_ns=(
                None if granularity is None else parse_time(granularity, "--sleep-granularity")
            ),
            window=window,
            seed=seed,
            threads=threads,
            progress=pulse,
        )
    if out is not None:
        result.write(out, force=force)
    for line in warnings(result):
        print(f"nearfar: note: {line}", file=sys.stderr)
    if not print_rows(result, output_format):
        from nearfar.report import ssd as report
        from nearfar.report import tables

        tables.show(report.ssd(result.to_dict()))
