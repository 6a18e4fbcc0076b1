"""``nearfar paging``: the page-size study of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import typer

from nearfar.cli._study import (
    Force,
    Format,
    Html,
    Out,
    check_format,
    check_outputs,
    print_rows,
    save,
    say_notes,
)
from nearfar.declared import paging as declared
from nearfar.schema import takes

if TYPE_CHECKING:
    from nearfar.info import HeatMap

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar paging app.trace --machine optane-ssd --html app.html"}


@takes(declared.OPTIONS)
def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    output_format: Format = "table",
    full: Annotated[bool, typer.Option("--full", help="Show every row.")] = False,
    out: Out = None,
    html: Html = None,
    heatmap: Annotated[
        bool,
        typer.Option(
            "--heatmap/--no-heatmap", help="Include a heat map (address x time) in the HTML page."
        ),
    ] = True,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Find the best page size at every memory size: TLB misses, page faults, access time."""
    from nearfar.cli._progress import progress, records
    from nearfar.paging import paging, warnings

    check_format(output_format)
    check_outputs(out, force, html)
    with progress(f"paging {trace}", records(trace, options)) as on_progress:
        result = paging(trace, progress=on_progress, **options)

    def page() -> str:
        return result.html(_heatmap(trace, result.run) if heatmap else None)

    save(result, out, force, html, page)
    say_notes(warnings(result))
    if not print_rows(result, output_format):
        from nearfar.report import tables, terminal

        tables.show(tables.paging(result, full=full))
        plot = terminal.paging(result, full=full)
        if plot:
            print(plot)
        if html is not None:
            print(f"page: {html}")


def _heatmap(trace: Path, run: Mapping[str, Any]) -> HeatMap:
    from nearfar.info import info

    found = info(
        trace,
        reuse=False,
        filter=run["options"]["filter"],
        # The machine matters only with a filter, and a run of several machines has none.
        machine=next(iter(run.get("machines", [run["machine"]]))),
    )
    return found.content["heatmap"]
