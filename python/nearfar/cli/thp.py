"""``nearfar thp``: settings for transparent huge pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import (
    Force,
    Format,
    Html,
    Out,
    check_format,
    check_outputs,
    print_result,
    save,
    say_notes,
)
from nearfar.declared import thp as declared
from nearfar.schema import takes

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar thp app.trace --policy never,always,64K=always+2M=madvise"}


@takes(declared.OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    output_format: Format = "table",
    out: Out = None,
    html: Html = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Compare settings for transparent huge pages: time, memory over the run, long faults."""
    from nearfar.cli._progress import progress, records
    from nearfar.thp import thp

    check_format(output_format)
    check_outputs(out, force, html)
    with progress(f"thp {trace}", records(trace)) as on_progress:
        result = thp(trace, progress=on_progress, **options)
    save(result, out, force, html)
    print_result(result, output_format, html)
    say_notes(result.notes)
