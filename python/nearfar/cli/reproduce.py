"""``nearfar reproduce``: the papers' published results beside ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {"epilog": "Example: nearfar reproduce paging --html paging.html"}

FORMATS = ("table", "json", "csv", "parquet")


def run(
    study: Annotated[str, typer.Argument(help="Such as paging (papers 000 and 001).")],
    full: Annotated[
        bool, typer.Option("--full", help="Capture or simulate at full size; takes long.")
    ] = False,
    traces: Annotated[
        Path | None,
        typer.Option(help="A folder of captures; --full puts there what is missing."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a row does not hold.")
    ] = False,
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: one a core.")] = 0,
    output_format: Annotated[
        str, typer.Option("--format", help="table, json, csv or parquet.")
    ] = "table",
    html: Annotated[Path | None, typer.Option(help="Also write a self-contained page.")] = None,
) -> int:
    """Show every published number and statement of a study's papers beside ours."""
    from nearfar.cli._progress import progress
    from nearfar.errors import NearfarError
    from nearfar.output import write_aside
    from nearfar.reproduce import reproduce

    if output_format not in FORMATS:
        raise NearfarError(
            f"--format: {output_format!r} is not a format; choose one of {', '.join(FORMATS)}"
        )
    if output_format == "parquet" and sys.stdout.isatty():
        raise NearfarError("--format parquet: not to a terminal; redirect it")
    with progress(f"reproduce {study}") as pulse:
        found = reproduce(study, full=full, traces=traces, threads=threads, progress=pulse)
    if html is not None:
        write_aside(html, found.html())
    if output_format == "json":
        print(found.to_json())
    elif output_format == "csv":
        import pyarrow.csv

        pyarrow.csv.write_csv(found.table, sys.stdout.buffer)
    elif output_format == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(found.table, sys.stdout.buffer)
    else:
        from nearfar.report import reproduce as report
        from nearfar.report.tables import show

        show(report.rows(found.to_dict()))
    return 1 if check and found.holding < len(found.rows) else 0
