"""``nearfar export``: a trace as another tool reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.declared import export as declared
from nearfar.schema import takes

#: Where `nearfar --help` lists it.
GROUP = "Tools"
SETTINGS = {"epilog": "Example: nearfar export app.trace --format csv -o app.csv"}


@takes(declared.OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    out: Annotated[
        str, typer.Option("-o", "--out", help="File, or - for stdout (not oracle-general).")
    ],
    *,
    format: str,  # noqa: A002
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    **options: Unpack[declared.Options],
) -> None:
    """Export a trace for another tool (formats: docs/formats.md)."""
    from nearfar import exporter
    from nearfar.cli._progress import progress, records

    with progress(f"exporting {trace}", records(trace)) as on_progress:
        count = exporter.export_trace(
            trace, out, format=format, force=force, progress=on_progress, **options
        )
    if out == "-":
        return
    if as_json:
        print(json.dumps({"file": out, "format": format, "references": count}))
    else:
        print(f"{out}: {count:,} references as {format}")
