"""``nearfar ssd``: a DRAM-interface SSD, and policies for pages that only flash has."""

from __future__ import annotations

import math
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
    check_rows,
    print_result,
    save,
    say_notes,
)
from nearfar.declared import ssd as declared
from nearfar.schema import default, takes

GROUP = "Ask"
SETTINGS = {
    "epilog": "Example: nearfar ssd app.trace --machine umd --dram 100M,150M --epf none,smart:50us"
}


@takes(declared.OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    output_format: Format = "table",
    out: Out = None,
    html: Html = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Replay a program on a DRAM-interface SSD: should threads wait for flash, or sleep?"""
    from nearfar.cli._progress import progress, records
    from nearfar.ssd import SsdResult, ssd, warnings

    check_format(output_format)
    check_outputs(out, force, html)
    lists = (str(options.get(name) or default(declared.OPTIONS, name)) for name in ("dram", "epf"))
    cells = math.prod(text.count(",") + 1 for text in lists)
    if html is not None:
        check_rows(SsdResult, cells)
    with progress(f"ssd {trace}", records(trace, options, cells)) as on_progress:
        result = ssd(trace, progress=on_progress, **options)
    save(result, out, force, html)
    say_notes(warnings(result))
    print_result(result, output_format, html)
