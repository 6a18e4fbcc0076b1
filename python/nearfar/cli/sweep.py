"""``nearfar sweep``: a study over a grid, resumable."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from nearfar import units
from nearfar.cli._progress import clear
from nearfar.cli._study import Format, check_format, print_rows, say_notes
from nearfar.declared import sweep as declared
from nearfar.output import shows_progress
from nearfar.schema import takes

if TYPE_CHECKING:
    from nearfar.sweep import Estimate, Progress, SweepResult
    from nearfar.sweep.cell import CellState

GROUP = "Compare"
SETTINGS = {"epilog": "Example: nearfar sweep study.toml --workers 2 -o study.sweep"}
#: Maximum number of failed cells to list.
_LISTED = 20


@takes(declared.OPTIONS)
def run(
    study: Annotated[Path, typer.Argument(help="TOML file of a study, its grid and options.")],
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the number of cells and the estimated time; run nothing."
        ),
    ] = False,
    output_format: Format = "table",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FOLDER", help="Folder of the results [default: NAME.sweep]."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Run finished cells again.")] = False,
    **options: Unpack[declared.Options],
) -> int:
    """Run a study over a grid of parameters; a rerun continues where it stopped."""
    import nearfar.sweep as sweeps

    check_format(output_format, hint=", or read the dataset in the folder")
    if dry_run:
        _print_estimate(sweeps.estimate(study, out, force=force, **options), output_format)
        return 0
    with _progress() as on_progress:
        result = sweeps.sweep(study, out, force=force, progress=on_progress, **options)
    has_rows = len(result.failed) < len(result.cells)
    # CSV and Parquet need a finished cell.
    if (has_rows or output_format in ("table", "json")) and not print_rows(result, output_format):
        from nearfar.report.tables import show

        show(result.view())
        print(f"{result.ran} cells run now\ndataset: {result.dataset}")
    sys.stdout.flush()  # before the messages on standard error
    say_notes(f"cell {_name(result, cell)}: {cell['error']}" for cell in result.failed[:_LISTED])
    if len(result.failed) > _LISTED:
        say_notes([f"and {len(result.failed) - _LISTED} more cells failed: see --format json"])
    return 1 if result.failed else 0


@contextmanager
def _progress() -> Iterator[Progress | None]:
    """Yield a function that shows cells done and the time left; None if progress is off."""
    if not shows_progress():
        yield None
        return

    def show(done: int, failed: int, cells: int, left: float | None) -> None:
        done_of = f"{done} of {cells} cells" + (f", {failed} failed" if failed else "")
        rest = "" if left is None else f", about {units.wait(left)} left"
        print(f"\r\033[Ksweep: {done_of}{rest}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        clear()


def _print_estimate(found: Estimate, output_format: str) -> None:
    if output_format == "json":
        print(json.dumps(found.to_dict(), indent=1))
        return
    left = found.cells - found.done
    before = f", of which {found.failed} failed before" if found.failed else ""
    print(f"{found.cells} cells: {found.done} done, {left} to run{before}")
    time = "unknown" if found.seconds is None else f"about {units.wait(found.seconds)}"
    if not left:
        time = "none"
    print(f"time: {time} ({found.basis})")


def _name(result: SweepResult, cell: CellState) -> str:
    """Name a cell by the parameters that differ between cells."""
    from nearfar.report.sweep import word

    values = cell["parameters"]
    names = result.varying or list(result.run["grid"])
    return ", ".join(f"{name}={word(values.get(name))}" for name in names) or str(cell["key"])
