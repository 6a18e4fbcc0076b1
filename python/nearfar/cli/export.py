"""``nearfar export``: write a trace in another tool's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import Force
from nearfar.declared import export as declared
from nearfar.errors import NearfarError, unknown
from nearfar.schema import takes

GROUP = "Tools"
SETTINGS = {"epilog": "Example: nearfar export app.trace --format csv -o app.csv"}


@takes(declared.OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    out: Annotated[
        str,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="File, or - for stdout (not with --format oracle-general).",
        ),
    ],
    *,
    format: str,  # noqa: A002
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
    **options: Unpack[declared.Options],
) -> None:
    """Export a trace for another tool (formats: docs/formats.md)."""
    from nearfar import exporter
    from nearfar.cli._progress import progress, records
    from nearfar.output import check_output

    # Check before --filter writes a temporary trace.
    if out != "-":
        check_output(Path(out), force=force)
    elif format == "oracle-general":
        raise NearfarError("-o -: oracle-general needs to seek in its output; name a file with -o")
    if format not in exporter.formats():
        raise unknown("--format: no export format", format, exporter.formats(), "one of")
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
