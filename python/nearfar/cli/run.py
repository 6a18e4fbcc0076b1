"""``nearfar run``: a program in two tiers of memory."""

from __future__ import annotations

import sys
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import Out, check_outputs, save
from nearfar.declared import run as declared
from nearfar.schema import takes

#: Where `nearfar --help` lists it.
GROUP = "Run"
SETTINGS = {
    "context_settings": {"ignore_unknown_options": False, "allow_interspersed_args": False},
    "epilog": "Example: nearfar run --fast 64M --far zstd -- sort big.txt",
}


@takes(declared.OPTIONS)
def run(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")
    ] = None,
    fast: str | None = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A knob of the policy; may be given again."),
    ] = None,
    out: Out = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing output of -o.")
    ] = False,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone/--no-alone",
            help="Run the program without nearfar first, its output discarded, and say how much "
            "longer it takes with. A share as --fast does that as well.",
        ),
    ] = False,
    watch: Annotated[
        str | None,
        typer.Option(
            metavar="PID",
            help="Run nothing: show a run that is under way, by its process or that of its "
            "program; auto: the only one.",
        ),
    ] = None,
    output_format: Annotated[
        str, typer.Option("--format", help="Of --watch: table, json, csv or parquet.")
    ] = "table",
    **options: Unpack[declared.Options],
) -> None:
    """Run an unmodified program with a part of its memory fast and the rest in a far tier.

    The program's standard streams are passed through; what it came to goes to standard error. Exit
    code: the program's, 128 + N when signal N ended it; 2 or 3, with a line that begins `nearfar:
    error:`, when nearfar itself failed. Linux 6.8 or later; root or CAP_SYS_PTRACE.
    """
    from nearfar import live
    from nearfar.cli._watch import show
    from nearfar.errors import NearfarError

    if watch is not None:
        if command or out is not None or alone:
            raise NearfarError("--watch: runs nothing; leave out the command, -o and --alone")
        show(watch, output_format)
        return
    if output_format != "table":
        raise NearfarError("--format: goes with --watch; -o keeps what a run came to")
    if fast is None:
        raise NearfarError("--fast: is missing; give a size such as 512M, or a share such as 50%")
    if not command:
        raise NearfarError("COMMAND: is missing; put the program after `--`")
    check_outputs(out, force)
    knobs = {}
    for text in knob or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise NearfarError(f"--knob: {text} has no value; write NAME=VALUE")
        knobs[name] = value
    outcome = live.run(command, fast=fast, alone=alone, knobs=knobs, **options)
    for line in str(outcome).splitlines():
        print(f"nearfar: {line}", file=sys.stderr)
    if outcome.why is not None:
        print(f"nearfar: error: the program was ended: {outcome.why}", file=sys.stderr)
    save(outcome, out, force)
    raise typer.Exit(outcome.exit_code)
