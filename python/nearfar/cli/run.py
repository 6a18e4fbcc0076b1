"""``nearfar run``: a program in two tiers of memory."""

from __future__ import annotations

from typing import Annotated, Unpack

import typer

from nearfar.cli._study import Force, Out, check_outputs, save, say
from nearfar.declared import run as declared
from nearfar.schema import takes

GROUP = "Run"
SETTINGS = {
    "context_settings": {
        "allow_interspersed_args": False,
        # Options of other tools, and what to do instead.
        "obj": dict.fromkeys(
            ("-p", "--pid", "--watch"),
            "run starts a program; to see a running `nearfar run`, use `nearfar watch PID`",
        ),
    },
    "epilog": "Example: nearfar run --fast 64M --far zstd -- sort big.txt",
}


@takes(declared.OPTIONS)
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")
    ],
    *,
    fast: str,
    knob: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A knob of the policy; repeatable."),
    ] = None,
    out: Out = None,
    force: Force = False,
    alone: Annotated[
        bool,
        typer.Option(
            "--alone/--no-alone",
            help="First run the program without nearfar and discard its output, to measure the "
            "slowdown. Implied if --fast is a share.",
        ),
    ] = False,
    **options: Unpack[declared.Options],
) -> None:
    """Run an unmodified program with part of its memory in a slower far tier.

    The program keeps its standard streams; a summary goes to standard error. `nearfar watch` shows
    the run from another terminal. Exit code: the program's, 128 + N if signal N ended it; 2 or 3,
    with a line that begins `nearfar: error:`, if nearfar itself failed. Needs Linux 6.8 or later,
    and root or CAP_SYS_PTRACE.
    """
    from nearfar import live
    from nearfar.errors import NearfarError

    check_outputs(out, force)
    knobs = {}
    for text in knob or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise NearfarError(f"--knob: {text} has no value; write NAME=VALUE")
        knobs[name] = value
    outcome = live.run(command, fast=fast, alone=alone, knobs=knobs, **options)
    for line in str(outcome).splitlines():
        say(line)
    if outcome.why is not None:
        say(f"error: the program was ended: {outcome.why}")
    save(outcome, out, force)
    raise typer.Exit(outcome.exit_code)
