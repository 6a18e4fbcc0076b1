"""``nearfar import``: convert another tool's trace to a trace folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import Force
from nearfar.declared import import_ as declared
from nearfar.schema import takes

GROUP = "Record"
SETTINGS = {"epilog": "Example: nearfar import runs/app.din.gz --format dinero -o app.trace"}


@takes(declared.OPTIONS)
def run(
    file: Annotated[
        str,
        typer.Argument(
            help="Another tool's trace: a file (.gz, .xz, .zst, .zip, .sz too), a folder, or - "
            "for stdin."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FOLDER", help="Trace folder [default: FILE.trace]."),
    ] = None,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print trace.json.")] = False,
    **options: Unpack[declared.Options],
) -> None:
    """Convert another tool's trace to a trace folder (formats: docs/formats.md)."""
    from nearfar import importer
    from nearfar.cli._progress import print_trace, progress

    with progress(f"importing {file}") as on_progress:
        trace = importer.import_trace(file, out, force=force, progress=on_progress, **options)
    # A trace is a folder; the file is a .heat file of DAMON's snapshots.
    if trace.is_file():
        from nearfar.heat import heat

        found = heat(trace)
        text = f"{trace}: import damo, {found.snapshots:,} snapshots without references"
        print(found.to_json() if as_json else f"{text}; `nearfar info {trace}` shows them")
        return
    print_trace(trace, as_json)
