"""``nearfar diff``: compare two runs, for people and for CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from nearfar.cli._study import Format, check_format, print_result, say
from nearfar.declared import diff as declared
from nearfar.schema import takes

if TYPE_CHECKING:
    from rich.console import RenderableType

GROUP = "Compare"
SETTINGS = {"epilog": "Example: nearfar diff before.run after.run --fail-above 3%"}


@takes(declared.OPTIONS)
def run(
    a: Annotated[Path, typer.Argument(help="Folder of the baseline, a run or a sweep.")],
    b: Annotated[
        Path, typer.Argument(help="Folder of the run or sweep to compare with the baseline.")
    ],
    fail_above: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="Exit code 1 if a row is worse by more than this, such as 3%."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every row.")] = False,
    output_format: Format = "table",
    **options: Unpack[declared.Options],
) -> int:
    """Compare two runs row by row, with confidence intervals over seeds."""
    from nearfar.advise.fleet import share
    from nearfar.diff import diff

    check_format(output_format, hint="")
    threshold = None if fail_above is None else share(fail_above, "--fail-above")
    found = diff(a, b, **options)

    def view() -> RenderableType:
        from nearfar.report import diff as report

        return report.diff(found, full=full)

    print_result(found, output_format, view=view)
    failed = found.worse(threshold) if threshold is not None else []
    if failed:
        sys.stdout.flush()  # before the message on standard error
        rows = f"{len(failed)} row" + "s" * (len(failed) > 1)
        say(f"{rows} worse by more than {fail_above}")
    return 1 if failed else 0
