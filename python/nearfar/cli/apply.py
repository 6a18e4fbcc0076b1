"""``nearfar apply``: a page size for one command on this machine, everything put back after it."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import check_format, print_rows
from nearfar.declared import apply as declared
from nearfar.schema import takes

#: Where `nearfar --help` lists it.
GROUP = "Run"
SETTINGS = {
    "context_settings": {"ignore_unknown_options": False, "allow_interspersed_args": False},
    "epilog": "Example: nearfar apply --page 64K --yes --compare --repeat 3 -- sort big.txt",
}


class Format(StrEnum):
    """How to print."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


@takes(declared.OPTIONS)
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")
    ] = None,
    page: str | None = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be done, as without --yes.")
    ] = False,
    restore: Annotated[
        bool,
        typer.Option("--restore", help="Only restore settings that a killed run left changed."),
    ] = False,
    output_format: Annotated[
        Format,
        typer.Option(
            "--format",
            help="table on standard error; the others on standard output, and the command's on "
            "standard error.",
        ),
    ] = Format.table,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Also write the result as JSON.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    **options: Unpack[declared.Options],
) -> None:
    """Run a command with pages of one size, put everything back, and measure what it did.

    Without --yes nothing is changed or run. Exit code: that of the command, 128 + N when signal N
    ended it; 2 or 3, with a line that begins `nearfar: error:`, when nearfar itself failed.
    """
    import nearfar.apply as study
    from nearfar.errors import NearfarError
    from nearfar.output import check_output, watched, write_whole

    yes = options.get("yes", False)
    if restore:
        if command or page is not None or yes:
            raise NearfarError("--restore: stands alone; leave the command, --page and --yes away")
        for change in study.restore():
            print(f"{change.file}: {change.becomes} -> {change.was}")
        return
    if page is None:
        raise NearfarError("--page: is missing; give a size such as 64K")
    if yes and dry_run:
        raise NearfarError("--dry-run: does not go with --yes; leave one of them away")
    if out is not None:
        check_output(out, force=force)
    plain = output_format is Format.table
    check_format(output_format, instead=", or use -o FILE")

    def show(done: int, runs: int) -> None:
        if runs > 1 and watched():
            print(f"nearfar: run {done + 1} of {runs}", file=sys.stderr)

    result = study.apply(
        command or [],
        page=page,
        stdout=None if plain else sys.stderr.fileno(),
        progress=show,
        **options,
    )
    if out is not None:
        write_whole(out, result.to_json() + "\n", force=force)
    if not print_rows(result, output_format):
        from nearfar.report import applied, tables

        tables.show(applied.report(result), sys.stderr if result.done else sys.stdout)
    raise typer.Exit(result.exit_code)
