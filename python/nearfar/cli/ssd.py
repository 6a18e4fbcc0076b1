"""``nearfar ssd``: a DRAM-interface SSD under policies for embedded page faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

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
)
from nearfar.declared.ssd import OPTIONS, Options
from nearfar.schema import takes

if TYPE_CHECKING:
    from rich.console import RenderableType

SETTINGS = {
    "epilog": "Example: nearfar ssd app.trace --machine umd --dram 100M,150M --epf none,smart:50us"
}


@takes(OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    output_format: Format = "table",
    out: Out = None,
    html: Html = None,
    force: Force = False,
    **options: Unpack[Options],
) -> None:
    """Replay a program on a DRAM-interface SSD: wait for its flash, or run something else?"""
    from nearfar.cli._progress import progress
    from nearfar.ssd import ssd, warnings

    check_format(output_format)
    check_outputs(out, force, html)
    with progress(f"ssd {trace}") as on_progress:
        result = ssd(trace, progress=on_progress, **options)
    save(result, out, force, html, result.html)
    for line in warnings(result):
        print(f"nearfar: note: {line}", file=sys.stderr)

    def shown() -> RenderableType:
        from nearfar.report import ssd as report

        return report.ssd(result.to_dict())

    print_result(result, output_format, shown, html)
