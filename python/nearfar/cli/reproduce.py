"""``nearfar reproduce``: compare the papers' published results with ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import (
    Force,
    Format,
    Html,
    check_format,
    check_outputs,
    print_rows,
    save_page,
)
from nearfar.declared import reproduce as declared
from nearfar.errors import NearfarError
from nearfar.schema import takes

GROUP = "Compare"
SETTINGS = {"epilog": "Example: nearfar reproduce --all --html papers.html"}


@takes(declared.OPTIONS)
def run(
    study: Annotated[
        str | None, typer.Argument(help="Paper (000 to 004) or study: numa, paging, ssd, tiering.")
    ] = None,
    all_studies: Annotated[bool, typer.Option("--all", help="Every study.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit code 1 if a published statement does not hold.")
    ] = False,
    output_format: Format = "table",
    html: Html = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> int:
    """Compare numbers and statements of five papers (docs/reproduce.md) with our results."""
    from nearfar.cli._progress import progress
    from nearfar.reproduce import everything, names, reproduce

    check_format(output_format, hint="")
    check_outputs(out=None, force=force, html=html)
    if (study is None) is not all_studies:
        raise NearfarError(
            f"reproduce: give a study ({', '.join(names())}), a paper (000 to 004) or --all"
        )
    with contextlib.ExitStack() as shown:

        def begin(name: str) -> Callable[[int], None] | None:
            shown.close()
            return shown.enter_context(progress(f"reproduce {name}"))

        if study is None:
            found = everything(progress=begin, **options)
        else:
            found = reproduce(study, progress=begin(study), **options)
    save_page(html, found.html, force)
    if not print_rows(found, output_format):
        from nearfar.report import reproduce as report
        from nearfar.report.tables import show

        show(report.rows(found))
    return 1 if check and found.holding < found.counted else 0
