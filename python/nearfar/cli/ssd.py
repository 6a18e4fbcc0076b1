"""``nearfar ssd``: a DRAM-interface SSD under policies for embedded page faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearfar.cli._study import Force, Format, Html, check_format, keep, names, tell
from nearfar.errors import NearfarError

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    overwrite: Annotated[
        str, typer.Option(help="At random: each page once, or drawn anew for each write.")
    ] = "once",
    sleep_granularity: Annotated[
        str | None,
        typer.Option(help="Threads wake at multiples of this time [default: cost.timer_slack]."),
    ] = None,
    atomic: Annotated[
        str,
        typer.Option(help="References during which no thread may sleep: none, kernel, or kinds."),
    ] = "kernel",
    first_touch: Annotated[
        str, typer.Option(help="What the flash has of a page before: new (nothing) or stored.")
    ] = "new",
    background: Annotated[
        str | None,
        typer.Option(help="Old pages in the DRAM at first, share written to: 30M,25%."),
    ] = None,
    window: Annotated[
        int, typer.Option(min=1, help="Instructions a thread may run ahead of the others.")
    ] = 1 << 20,
    seed: Annotated[int, typer.Option(min=0, max=2**64 - 1, help="Of the preconditioning.")] = 1,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: one a core.")] = 0,
    output_format: Format = "table",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Also write result.parquet and run.json.")
    ] = None,
    html: Html = None,
    force: Force = False,
) -> None:
    """Replay a program on a DRAM-interface SSD: wait for its flash, or run something else?"""
    from nearfar.cli._progress import progress
    from nearfar.sizes import parse_shares, parse_time
    from nearfar.ssd import ssd, warnings

    check_format(output_format)
    shares = parse_shares(precondition, "--precondition", 2)
    granularity = sleep_granularity
    before = None
    if background is not None:
        size, comma, written = background.partition(",")
        if not comma:
            fix = "write for example 30M,25%"
            raise NearfarError(f"--background: {background[:40]!r} has no share; {fix}")
        before = (size, parse_shares(written, "--background", 1)[0])
    with progress(f"ssd {trace}") as pulse:
        result = ssd(
            trace,
            machine=machine,
            dram=names(dram) or [],
            epf=names(epf) or [],
            disk=disk,
            precondition=(shares[0], shares[1]),
            overwrite=overwrite,
            sleep_granularity_ns=(
                None if granularity is None else parse_time(granularity, "--sleep-granularity")
            ),
            atomic=atomic,
            first_touch=first_touch,
            background=before,
            window=window,
            seed=seed,
            threads=threads,
            progress=pulse,
        )
    keep(result, out, force, html, result.html)
    for line in warnings(result):
        print(f"nearfar: note: {line}", file=sys.stderr)

    def shown() -> RenderableType:
        from nearfar.report import ssd as report

        return report.ssd(result.to_dict())

    tell(result, output_format, shown, html)
