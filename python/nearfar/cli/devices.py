"""``nearfar devices``: devices below memory, in one table."""

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
from nearfar.declared import devices as declared
from nearfar.schema import takes

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar devices app.trace --cost dram=4,nvme=0.1"}


@takes(declared.OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    output_format: Format = "table",
    out: Out = None,
    html: Html = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Compare zram, SSDs, CXL memory and CXL-SSDs below memory: time, memory needed, cost."""
    from nearfar.cli._progress import progress, records
    from nearfar.devices import devices

    check_format(output_format)
    check_outputs(out, force, html)
    with progress(f"devices {trace}", records(trace)) as on_progress:
        result = devices(trace, progress=on_progress, **options)
    save(result, out, force, html)
    print_result(result, output_format, html)
    say_notes(result.notes)
