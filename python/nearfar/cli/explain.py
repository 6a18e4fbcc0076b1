"""``nearfar explain``: the parts of a run's time, and the code and memory that cause them."""

from __future__ import annotations

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
from nearfar.declared import explain as declared
from nearfar.schema import takes

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar explain app.run --by-function --html app.html"}


@takes(declared.OPTIONS)
def run(
    run: Annotated[Path, typer.Argument(help="Folder that `nearfar paging -o` wrote.")],
    *,
    by_function: Annotated[
        bool, typer.Option("--by-function", help="Show functions and lines instead of regions.")
    ] = False,
    output_format: Format = "table",
    html: Html = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Explain a row of a run: its time by part, and the regions or functions that cause it."""
    from nearfar.cli._progress import progress, records_of_run
    from nearfar.explain import explain

    check_format(output_format, hint="")
    check_outputs(out=None, force=force, html=html)
    with progress(f"explain {run}", records_of_run(run)) as on_progress:
        found = explain(run, progress=on_progress, **options)
    save_page(html, found.html, force)

    def view() -> RenderableType:
        from nearfar.report import explain as report

        return report.explain(found, by_function=by_function)

    print_result(found, output_format, html, view)
