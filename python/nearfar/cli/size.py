"""``nearfar size``: memory, page size and swap for a program."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._help import after_dashes
from nearfar.cli._study import (
    Force,
    Format,
    Out,
    check_emitter,
    check_format,
    check_outputs,
    print_result,
    save,
)
from nearfar.declared import size as declared
from nearfar.errors import NearfarError
from nearfar.schema import takes

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar size -- gzip -dc numbers.gz"}


@takes(declared.OPTIONS)
def run(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND... | TRACE...",
            help="A program to record and its arguments, or trace folders, or one fleet.toml.",
        ),
    ],
    record: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to record a program [default: NAME.trace]."),
    ] = None,
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Show what the program prints.")
    ] = False,
    emit: Annotated[
        str | None,
        typer.Option(metavar="TOOL", help="Print configuration for a tool (docs/apply.md)."),
    ] = None,
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Say how much memory, which page size and which swap a program needs.

    A program after `--` is recorded first, with its child processes, as by `nearfar capture`; what
    it prints is not shown. Limits are advised only if the whole run was recorded.
    """
    import nearfar.size as sizes
    from nearfar.cli._progress import progress, records

    command = after_dashes()
    if command is not None and len(command) != len(inputs):
        raise NearfarError("size: give traces, or a program after `--`, not both")
    check_format(output_format)
    check_outputs(out, force)
    if emit is not None:
        check_emitter("size", emit)
    if command is None:
        if record is not None or show_output:
            raise NearfarError("size: --record and --show-output need a program after `--`")
        plan = sizes.Plan.of(inputs, **options)
    else:
        from nearfar.capture import default_output

        trace = record or default_output(command)
        plan = sizes.Plan.of(trace, **options)
        _record(command, trace, force, show_output)
    total = records(plan.vms[0].trace, {}) if len(plan.vms) == 1 else None
    with progress(f"size {plan.vms[0].name}", total) as on_progress:
        result = sizes.carry_out(plan, on_progress)
    texts = _emitted(result, emit, out)
    save(result, out, force, texts=texts)
    if texts and out is None:
        print("\n".join(texts.values()), end="")
    else:
        print_result(result, output_format)
    for note in result.notes:
        print(f"nearfar: note: {note}", file=sys.stderr)


def _emitted(result: object, kind: str | None, out: Path | None) -> dict[str, str]:
    """The configuration of each program, by file name."""
    from nearfar import emit as emitters
    from nearfar.size import SizeResult

    assert isinstance(result, SizeResult)
    if kind is None:
        return {}
    if len(result.rows) > 1 and out is None:
        raise NearfarError(f"--emit: {len(result.rows)} files to make; give -o FOLDER")
    return {emitters.file_name(kind, row["vm"]): emitters.emit(kind, row) for row in result.rows}


def _record(command: Sequence[str], trace: Path, force: bool, show_output: bool) -> None:
    """Record a program, with its child processes."""
    import nearfar.capture as captures

    show = captures.meter()
    with _silent(show_output):
        outcome = captures.run(list(command), trace, force=force, progress=show, follow_forks=True)
    if show is not None:
        print("\x1b[K", end="", file=sys.stderr)
    if outcome.exit_code:
        print(
            f"nearfar: warning: the program exited with status {outcome.exit_code}",
            file=sys.stderr,
        )
    for warning in outcome.warnings:
        print(f"nearfar: warning: {warning}", file=sys.stderr)
    if outcome.interrupted:
        print(f"nearfar: interrupted; {trace} has what was recorded", file=sys.stderr)


@contextmanager
def _silent(shown: bool) -> Iterator[None]:
    """Discard what is written to standard output, unless it is to be shown."""
    if shown:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
