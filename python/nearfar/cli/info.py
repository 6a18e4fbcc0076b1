"""``nearfar info``: what a trace holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from nearfar.cli._study import Format, check_format, print_result
from nearfar.declared.info import OPTIONS, Options
from nearfar.schema import takes

if TYPE_CHECKING:
    from rich.console import RenderableType

SETTINGS = {"epilog": "Example: nearfar info app.trace --html app.html"}


@takes(OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    output_format: Format = "table",
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with a heat map as well."),
    ] = None,
    **options: Unpack[Options],
) -> None:
    """Say what a trace holds: footprint, working set, hottest regions, reuse (docs/info.md)."""
    from nearfar import info
    from nearfar.cli._progress import progress
    from nearfar.output import write_whole

    check_format(output_format, instead="")
    if html is not None:
        _check_place(html)
    with progress(f"reading {trace}") as on_progress:
        found = info.info(trace, heatmap=html is not None, progress=on_progress, **options)
    if html is not None:
        write_whole(html, found.html())

    def shown() -> RenderableType:
        from nearfar.report import tables

        return tables.info(found)

    print_result(found, output_format, shown)


def _check_place(html: Path) -> None:
    """Find out before the work, not after it, that the page cannot be written there."""
    from nearfar.errors import NearfarError

    if html.is_dir():
        raise NearfarError(f"--html {html}: is a folder; give the name of a file")
    if not html.parent.is_dir():
        raise NearfarError(f"--html {html}: no folder {html.parent}; make it first")
