"""Output options of commands and their checks; printing and writing of results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from nearfar.errors import NearfarError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nearfar.advise.fleet import Vm
    from nearfar.result import FolderResult, Result


def _format(formats: str) -> Any:
    return typer.Option("--format", metavar="FORMAT", help=f"Format of the output: {formats}.")


Format = Annotated[
    Literal["table", "json", "csv", "parquet"], _format("table, json, csv or parquet")
]
#: For output that is not one table.
TextFormat = Annotated[Literal["table", "json"], _format("table or json")]
TomlFormat = Annotated[Literal["table", "json", "toml"], _format("table, json or toml")]
Emit = Annotated[
    str | None, typer.Option(metavar="TOOL", help="Print configuration for a tool (docs/apply.md).")
]
Force = Annotated[bool, typer.Option("--force", help="Replace existing outputs.")]
Html = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write a self-contained HTML page.")
]
Out = Annotated[
    Path | None,
    typer.Option(
        "-o", "--out", metavar="FOLDER", help="Also write result.parquet and run.json to a folder."
    ),
]


def check_format(output_format: str, hint: str = ", or use -o FOLDER") -> None:
    """Refuse binary output to a terminal, before the work; ``hint`` ends the message."""
    if output_format == "parquet" and sys.stdout.isatty():
        raise NearfarError(f"--format parquet: not to a terminal; redirect it{hint}")


def check_outputs(out: Path | None, force: bool, html: Path | None = None) -> None:
    """Refuse, before the work, a folder or HTML page that :func:`save` could not write."""
    from nearfar.output import check_output
    from nearfar.result import RUN

    if out is not None:
        check_output(out, force=force, holds=RUN)
    if html is not None:
        check_output(html, force=force)


def check_rows(result: type[Result], rows: int) -> None:
    """Refuse, before the work, more rows than the result's HTML page can show."""
    from nearfar.result import load

    # `page` is the page's class as text, `module:name`.
    load(str(result.page)).check_rows(rows)


def check_emitter(command: str, kind: str) -> None:
    """Refuse, before the work, an emitter (``--emit``) that is unknown or not for this command."""
    from nearfar.cli._shared import NAMES
    from nearfar.errors import unknown

    known = [name for name, _ in NAMES[f"{command} emit"]()]
    if kind not in known:
        raise unknown(f"--emit: `nearfar {command}` has no emitter", kind, known, "one of")


def check_files(kind: str, vms: Sequence[Vm], *, fleet: bool) -> None:
    """Refuse, before the work, an ``--emit`` that would print several files."""
    from nearfar import emit

    of_host = fleet and emit.is_of_host(kind)
    files = len({vm.machine if of_host else vm.name for vm in vms})
    if files > 1:
        raise NearfarError(f"--emit: {files} files to make; give -o FOLDER")


def save(
    result: FolderResult,
    out: Path | None,
    force: bool,
    html: Path | None = None,
    page: Callable[[], str] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write the folder of a result, with the files ``texts``, and its HTML page (or ``page``)."""
    if out is not None:
        result.write(out, force=force, texts=texts)
        for name in texts or ():
            say(f"wrote {out / name}")
    save_page(html, page or result.html, force)


def save_page(html: Path | None, page: Callable[[], str], force: bool) -> None:
    """Write the HTML page of ``--html``."""
    if html is not None:
        from nearfar.output import write_whole

        write_whole(html, page(), force=force)


def emitted(
    kind: str | None, rows: Sequence[Mapping[str, object]], *, fleet: bool = False
) -> tuple[dict[str, str], list[str]]:
    """The files of ``--emit`` by name, and the errors of those that cannot be made.

    Raises:
        NearfarError: none can be made.
    """
    from nearfar import emit

    texts, errors = emit.files(kind, rows, fleet=fleet) if kind else ({}, [])
    if errors and not texts:
        raise NearfarError(errors[0])
    return texts, errors


def say(text: str) -> None:
    """Print a message on standard error."""
    print(f"nearfar: {text}", file=sys.stderr, flush=True)


def say_notes(notes: Iterable[str]) -> None:
    """Print notes on standard error."""
    for note in notes:
        say(f"note: {note}")


def print_result(
    result: Result,
    output_format: str,
    html: Path | None = None,
    view: Callable[[], RenderableType] | None = None,
    texts: Mapping[str, str] | None = None,
) -> None:
    """Print the files of ``--emit`` (``texts``) if there are any, otherwise the result.

    The format ``table`` is the result's view, or ``view`` if given, and the path of the page.
    """
    if texts:
        print("\n".join(texts.values()), end="")
    elif not print_rows(result, output_format):
        from nearfar.report.tables import show

        show((view or result.view)())
        if html is not None:
            print(f"page: {html}")


def print_rows(result: Result, output_format: str) -> bool:
    """Print a result as JSON, CSV or Parquet; False for ``table``, which the caller prints."""
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
