"""``nearfar paging``: the page-size study of a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from nearfar.cli._study import Force, Format, Html, check_format, keep, names, print_rows

SETTINGS = {"epilog": "Example: nearfar paging app.trace --machine optane-ssd --html app.html"}


def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    page_sizes: Annotated[
        str, typer.Option(help="Powers of two; `...` doubles.")
    ] = "512,1K,...,2M",
    memory: Annotated[
        str, typer.Option(help="Parts of the footprint (50%) or bytes (512M).")
    ] = "10%,...,100%",
    tlb: Annotated[
        str, typer.Option(help="Entries (64), with ways (64x4), two levels (64+1536x12).")
    ] = "64",
    replacement: Annotated[str, typer.Option(help="clock, lru or linux.")] = "clock",
    clock_insert: Annotated[
        str, typer.Option(help="CLOCK loads a page with its bit: set or clear.")
    ] = "set",
    machine: Annotated[str, typer.Option(help="Machine name or file.")] = "desktop-nvm",
    storage: Annotated[
        str | None, typer.Option(help="Storages of the machine [default: all].")
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(help="load, store, fetch, kernel-load, kernel-store [default: all]."),
    ] = None,
    filter: Annotated[  # noqa: A002
        str,
        typer.Option(help="none, or cache: only references that miss the machine's caches."),
    ] = "none",
    write_back: Annotated[
        bool, typer.Option("--write-back", help="Charge a write for each dirty eviction.")
    ] = False,
    sample: Annotated[
        float | None, typer.Option(help="Simulate this part of the pages, with its error.")
    ] = None,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: one a core.")] = 0,
    max_memory: Annotated[
        str | None,
        typer.Option(help="Keep to this much memory, in more passes if need be [default: 12G]."),
    ] = None,
    output_format: Format = "table",
    full: Annotated[bool, typer.Option("--full", help="Every row in the table.")] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Also write result.parquet and run.json.")
    ] = None,
    html: Html = None,
    heatmap: Annotated[
        bool, typer.Option("--heatmap/--no-heatmap", help="Address x time in the page.")
    ] = True,
    force: Force = False,
) -> None:
    """Find the best page size at every memory size: TLB misses, page faults, access time."""
    from nearfar.cli._progress import progress
    from nearfar.paging import paging, warnings
    from nearfar.sizes import parse_bytes

    check_format(output_format)
    with progress(f"paging {trace}") as pulse:
        result = paging(
            trace,
            page_sizes=page_sizes,
            memory=memory,
            tlb=tlb,
            replacement=replacement,
            clock_insert=clock_insert,
            machine=machine,
            storage=names(storage),
            kinds=names(kinds),
            filter=filter,
            write_back=write_back,
            sample=sample,
            threads=threads,
            max_memory=None if max_memory is None else parse_bytes(max_memory, "--max-memory"),
            progress=pulse,
        )

    def page() -> str:
        return result.html(_heatmap(trace, filter, machine) if heatmap else None)

    keep(result, out, force, html, page)
    for line in warnings(result):
        print(f"nearfar: note: {line}", file=sys.stderr)
    if not print_rows(result, output_format):
        from nearfar.report import tables, terminal

        found = result.to_dict()
        tables.show(tables.paging(found, full=full))
        plot = terminal.paging(found)
        if plot:
            print(plot)
        if html is not None:
            print(f"page: {html}")


def _heatmap(trace: Path, filter: str, machine: str) -> dict[str, object]:  # noqa: A002
    from nearfar.info import info

    found = info(trace, reuse=False, filter=filter, machine=machine)
    heatmap: dict[str, object] = found["heatmap"]
    return heatmap
