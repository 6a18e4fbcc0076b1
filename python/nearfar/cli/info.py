"""``nearfar info``: what a trace holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearfar.cli._study import Format, check_format, tell

if TYPE_CHECKING:
    from rich.console import RenderableType

SETTINGS = {"epilog": "Example: nearfar info app.trace --html app.html"}


def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    output_format: Format = "table",
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with a heat map as well."),
    ] = None,
    filter: Annotated[  # noqa: A002
        str,
        typer.Option(help="none, or cache: only references that miss the machine's caches."),
    ] = "none",
    machine: Annotated[str, typer.Option(help="Machine of --filter.")] = "desktop-nvm",
    reuse: Annotated[
        bool, typer.Option("--reuse/--no-reuse", help="Work out the distances of reuse.")
    ] = True,
) -> None:
    """Say what a trace holds: footprint, working set, hottest regions, reuse (docs/info.md)."""
    from nearfar import info
    from nearfar.cli._progress import progress
    from nearfar.output import write_whole

    check_format(output_format, instead="")
    if html is not None:
        _check_place(html)
    with progress(f"reading {trace}") as pulse:
        found = info.info(
            trace,
            reuse=reuse,
            heatmap=html is not None,
            filter=filter,
            machine=machine,
            progress=pulse,
        )
    if html is not None:
        write_whole(html, found.html())

    def shown() -> RenderableType:
        from nearfar.report import tables

        return tables.info(found)

    tell(found, output_format, shown)


def _check_place(html: Path) -> None:
    """Find out before the work, not after it, that the page cannot be written there."""
    from nearfar.errors import NearfarError

    if html.is_dir():
        raise NearfarError(f"--html {html}: is a folder; give the name of a file")
    if not html.parent.is_dir():
        raise NearfarError(f"--html {html}: no folder {html.parent}; make it first")
