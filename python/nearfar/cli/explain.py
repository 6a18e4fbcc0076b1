"""``nearfar explain``: what a number of a run is made of, and where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearfar.cli._study import Format, check_format, tell

if TYPE_CHECKING:
    from rich.console import RenderableType

SETTINGS = {"epilog": "Example: nearfar explain app.run --page 64K --memory 50%"}


def run(
    run: Annotated[Path, typer.Argument(help="Folder that `nearfar paging -o` wrote.")],
    page: Annotated[str, typer.Option(help="Page size of the row, such as 64K.")],
    memory: Annotated[
        str | None, typer.Option(help="Its memory size, such as 50% [default: the middle one].")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Its storage [default: the run's first].")
    ] = None,
    output_format: Format = "table",
) -> None:
    """Take a row apart: terms of the model; regions, addresses and code that miss and fault."""
    from nearfar.cli._progress import progress
    from nearfar.explain import explain

    check_format(output_format, instead="")
    with progress(f"explain {run}") as pulse:
        found = explain(run, page=page, memory=memory, storage=storage, progress=pulse)

    def shown() -> RenderableType:
        from nearfar.report import explain as report

        return report.explain(found.to_dict())

    tell(found, output_format, shown)
