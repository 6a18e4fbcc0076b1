"""``nearfar import``: a trace of another tool as a trace folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {"epilog": "Example: nearfar import runs/app.din.gz --format dinero -o app.trace"}

#: The engine takes 64 bits.
MOST = 2**64 - 1


def run(
    file: Annotated[
        str, typer.Argument(help="The other tool's file (.gz, .xz, .zst too), or - for stdin.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Trace folder [default: the file's name, .trace]."),
    ] = None,
    format: Annotated[  # noqa: A002
        str | None,
        typer.Option(
            metavar="NAME",
            help="lackey, dinero, champsim, champsim-cloudsuite, oracle-general, pinatrace, "
            "drmemtrace-text, perf-script or csv [default: told by the content].",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing trace.")] = False,
    skip_bad: Annotated[
        int, typer.Option(min=0, max=MOST, metavar="N", help="Let up to N bad records through.")
    ] = 0,
    max_refs: Annotated[
        int | None, typer.Option(min=1, max=MOST, metavar="N", help="Stop after N references.")
    ] = None,
    object_bytes: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST, metavar="N", help="oracle-general: bytes an id stands for [4096]."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print trace.json.")] = False,
) -> None:
    """Import a trace of another tool (formats: docs/formats.md)."""
    from nearfar import importer
    from nearfar.cli._progress import made, progress

    with progress(f"importing {file}") as pulse:
        trace = importer.import_trace(
            file,
            out,
            format=format,
            force=force,
            skip_bad=skip_bad,
            max_refs=max_refs,
            object_bytes=object_bytes,
            progress=pulse,
        )
    made(trace, as_json)
