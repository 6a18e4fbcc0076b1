"""What the commands of the studies share: formats, how a result is printed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearfar.errors import NearfarError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nearfar.result import FolderResult, Result

Format = Annotated[str, typer.Option("--format", help="table, json, csv or parquet.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing outputs of -o and --html.")]
Html = Annotated[Path | None, typer.Option(help="Also write a self-contained HTML page.")]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", help="Also write result.parquet and run.json.")
]

#: What ``--format`` may be.
FORMATS = ("table", "json", "csv", "parquet")


def check_format(
    output_format: str, formats: tuple[str, ...] = FORMATS, instead: str = ", or use -o FOLDER"
) -> None:
    """Refuse a format that is none, and binary output to a terminal; ``instead``: what else helps.

    Before the work, not after.
    """
    if output_format not in formats:
        raise NearfarError(
            f"--format: {output_format!r} is not a format; choose one of {', '.join(formats)}"
        )
    if output_format == "parquet" and sys.stdout.isatty():
        raise NearfarError(f"--format parquet: not to a terminal; redirect it{instead}")


def check_outputs(out: Path | None, force: bool, html: Path | None = None) -> None:
    """Refuse, before the work, a folder or page that :func:`save` could not write after it."""
    from nearfar.output import check_output
    from nearfar.result import RUN

    if out is not None:
        check_output(out, force=force, holds=RUN)
    if html is not None:
        check_output(html, force=force)


def save(
    result: FolderResult,
    out: Path | None,
    force: bool,
    html: Path | None = None,
    page: Callable[[], str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write the folder (with ``texts``) and the page that the options ask for."""
    if out is not None:
        result.write(out, force=force, texts=texts)
    if html is not None and page is not None:
        from nearfar.output import write_whole

        write_whole(html, page(), force=force)


def print_result(
    result: Result,
    output_format: str,
    html: Path | None = None,
    shown: Callable[[], RenderableType] | None = None,
) -> None:
    """Print a result: for programs its rows, for people its view or ``shown``, and the page."""
    if not print_rows(result, output_format):
        from nearfar.report.tables import show

        show(result.view() if shown is None else shown())
        if html is not None:
            print(f"page: {html}")


def print_rows(result: Result, output_format: str) -> bool:
    """Print a result for programs; False for ``table``, which the command prints itself."""
    if output_format == "json":
        print(result.to_json())
    elif output_format == "csv":
        import pyarrow.csv

        pyarrow.csv.write_csv(result.table, sys.stdout.buffer)
    elif output_format == "parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(result.table, sys.stdout.buffer)
    else:
        return False
    return True
