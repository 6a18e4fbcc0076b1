"""``nearfar info``: what a trace holds."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {"epilog": "Example: nearfar info app.trace --html app.html"}


class Format(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,  # noqa: A002
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
    import csv
    import json
    import sys

    from nearfar import info
    from nearfar.cli._progress import progress
    from nearfar.output import write_aside

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
    heatmap = found.pop("heatmap", None)
    if html is not None:
        from nearfar.report.html import info_page

        write_aside(html, info_page(found, heatmap))
    if format is Format.JSON:
        print(json.dumps(found, indent=2))
    elif format is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["section", "item", "quantity", "value"])
        writer.writerows(info.rows(found))
    else:
        from nearfar.report import tables

        tables.show(tables.info(found))


def _check_place(html: Path) -> None:
    """Find out before the work, not after it, that the page cannot be written there."""
    from nearfar.errors import NearfarError

    if html.is_dir():
        raise NearfarError(f"--html {html}: is a folder; give the name of a file")
    if not html.parent.is_dir():
        raise NearfarError(f"--html {html}: no folder {html.parent}; make it first")
