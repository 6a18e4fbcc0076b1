"""``nearfar apply``: run a command with one page size on this machine, then restore settings."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal, Unpack

import typer

from nearfar.cli._study import Force, check_format, print_rows, say
from nearfar.declared import apply as declared
from nearfar.schema import takes

GROUP = "Run"
SETTINGS = {
    "context_settings": {"allow_interspersed_args": False},
    "epilog": "Example: nearfar apply --page 64K --yes --compare --repeat 3 -- sort big.txt",
}


@takes(declared.OPTIONS)
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")
    ] = None,
    page: str | None = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what --yes would do; the default.")
    ] = False,
    restore: Annotated[
        bool,
        typer.Option(
            "--restore", help="Restore settings that a killed run left changed; run nothing."
        ),
    ] = False,
    output_format: Annotated[
        Literal["table", "json", "csv", "parquet"],
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="table: on standard error (dry run: on standard output); json, csv or parquet: on "
            "standard output, with the command's output on standard error.",
        ),
    ] = "table",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Also write the result as JSON."),
    ] = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Run and measure a command with one page size, then restore the machine's settings.

    Without --yes nothing is changed or run. Exit code: the command's, 128 + N if signal N ended
    it; 2 or 3, with a line that begins `nearfar: error:`, if nearfar itself failed.
    """
    import nearfar.apply as study
    from nearfar.errors import NearfarError
    from nearfar.output import check_output, shows_progress, write_whole

    yes = options.get("yes", False)
    if restore:
        if command or page is not None or yes:
            raise NearfarError("--restore: runs nothing; leave out the command, --page and --yes")
        for change in study.restore():
            print(f"{change.file}: {change.becomes} -> {change.was}")
        return
    if page is None:
        raise NearfarError("--page: is missing; give a size such as 64K")
    if yes and dry_run:
        raise NearfarError("--dry-run: contradicts --yes; leave one of them out")
    if out is not None:
        check_output(out, force=force)
    plain = output_format == "table"
    check_format(output_format, hint=", or use -o FILE")

    def show(done: int, runs: int) -> None:
        if runs > 1 and shows_progress():
            say(f"run {done + 1} of {runs}")

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
