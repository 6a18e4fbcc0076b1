"""``nearfar explain``: what a number of a run is made of, and where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import Format, check_format, print_result
from nearfar.declared.explain import OPTIONS, Options
from nearfar.schema import takes

SETTINGS = {"epilog": "Example: nearfar explain app.run --page 64K --memory 50%"}


@takes(OPTIONS)
def run(
    run: Annotated[Path, typer.Argument(help="Folder that `nearfar paging -o` wrote.")],
    *,
    page: str,
    output_format: Format = "table",
    **options: Unpack[Options],
) -> None:
    """Take a row apart: terms of the model; regions, addresses and code that miss and fault."""
    from nearfar.cli._progress import progress, records_of_run
    from nearfar.explain import explain

    check_format(output_format, instead="")
    with progress(f"explain {run}", records_of_run(run)) as on_progress:
        found = explain(run, page=page, progress=on_progress, **options)

    print_result(found, output_format)
