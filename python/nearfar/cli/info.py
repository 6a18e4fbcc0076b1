"""``nearfar info``: a summary of a trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from nearfar.cli._study import (
    Force,
    Format,
    Html,
    check_format,
    check_outputs,
    print_result,
    save_page,
)
from nearfar.declared import info as declared
from nearfar.schema import takes

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nearfar.info import Verified

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar info app.trace --html app.html"}


@takes(declared.OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    output_format: Format = "table",
    html: Html = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Summarize a trace: footprint, working set, hottest regions, reuse (docs/info.md)."""
    if trace.suffix == ".heat" and not trace.is_dir():
        _heat(trace, output_format, options, html)
        return
    import nearfar.info as study
    from nearfar.cli._progress import progress, records

    check_format(output_format, hint="")
    check_outputs(out=None, force=force, html=html)
    with progress(f"reading {trace}", records(trace, options)) as on_progress:
        found = study.info(trace, heatmap=html is not None, progress=on_progress, **options)
    save_page(html, found.html, force)

    def view() -> RenderableType:
        from rich.console import Group

        from nearfar.report import tables

        table = tables.info(found.content)
        return Group(table, *_verified(found["verified"])) if "verified" in found else table

    print_result(found, output_format, view=view)


def _heat(path: Path, output_format: str, options: declared.Options, html: Path | None) -> None:
    """Print a ``.heat`` file: snapshots by DAMON."""
    from nearfar.errors import NearfarError
    from nearfar.heat import heat

    check_format(output_format, hint="")
    defaults = {option.name: option.default for option in declared.OPTIONS}
    wrong = [name for name, value in options.items() if value != defaults[name]]
    if html is not None or wrong:
        name = wrong[0].replace("_", "-") if wrong else "html"
        raise NearfarError(f"--{name}: {path} has no references; leave the option out")
    print_result(heat(path), output_format)


def _verified(files: Sequence[Verified]) -> Iterator[RenderableType]:
    from rich.text import Text

    from nearfar import units
    from nearfar.report import tables

    cells = [
        (
            file["file"],
            units.count(file["rows"]),
            units.count(file["bytes"]),
            "no checksum" if file["checksum"] is None else f"{file['checksum']} matches",
        )
        for file in files
    ]
    yield Text("")
    yield tables.listing("Verified files", ["file", "rows", "bytes", "checksum"], cells)
    yield Text(
        "Every Parquet data page decodes. Records by kind and thread, instructions and pages by "
        "kind "
        "match trace.json."
    )
