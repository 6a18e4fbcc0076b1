"""``nearfar capture``: run a program and write its trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import Force, say
from nearfar.declared import capture as declared
from nearfar.schema import takes

GROUP = "Record"
SETTINGS = {
    "context_settings": {
        "allow_interspersed_args": False,
        # Options of other tools, and what to do instead.
        "obj": dict.fromkeys(
            ("-p", "--pid"),
            "capture starts a program and does not attach to a running one; "
            "write `nearfar capture -- COMMAND...`",
        ),
    },
    "epilog": "Example: nearfar capture -o app.trace -- gzip -dc numbers.gz",
}


@takes(declared.OPTIONS)
def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Program and its arguments."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", metavar="FOLDER", help="Trace folder to write [default: NAME.trace]."
        ),
    ] = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Run an unmodified x86-64 or aarch64 program, or a virtual machine, and write its trace.

    capture starts the program: it cannot attach to one that runs already (there is no --pid).
    nearfar's options go before the program; all words after it are the program's.

    The program runs 20 to 35 times slower than alone; --sample 1% is several times faster.
    To learn only how much memory a running program needs, use `nearfar watch`.

    The program keeps its standard streams; a summary goes to standard error. Exit code 0 if the
    trace is complete, whatever the program returns; 130 after Ctrl-C.
    """
    import nearfar.capture as captures
    from nearfar.cli._progress import as_count

    show = captures.meter(as_count(options.get("stop_after") or options.get("max_refs")))
    start_signal = options.get("start_on") or ""
    announced = not start_signal

    def on_progress(records: int) -> None:
        nonlocal announced
        if not announced:  # the signal has a handler by now
            announced = True
            say(f"recording begins on {start_signal}: kill -{start_signal[3:]} {os.getpid()}")
        if show is not None:
            show(records)

    outcome = captures.run(command or [], output, force=force, progress=on_progress, **options)
    if show is not None:
        print("\x1b[K", end="", file=sys.stderr)  # clear the progress line
    info = outcome.info
    threads = len(info["threads"])
    pages = sum(info["pages_by_kinds"].values())
    size = sum(part["bytes"] for part in info["parts"])
    say(
        f"{outcome.path}: {info['records']:,} records, {info['instructions']:,} instructions, "
        f"{threads} thread{'s' * (threads != 1)}, {pages:,} pages of 4 KiB, {size:,} bytes"
    )
    if sample := info["source"].get("sample"):
        references, bursts = sum(sample["references"].values()), len(sample["bursts"])
        say(
            f"a sample of {sample['rate']:.3g} of the pages and {bursts:,} bursts of all "
            f"references; "
            f"the program made {references:,} references"
        )
    elif options.get("sample"):
        say("the program is small: all of its pages were recorded")
    if outcome.exit_code:
        say(f"the program exited with status {outcome.exit_code}")
    if outcome.signal is not None:
        say(f"signal {outcome.signal} ended the program")
    for warning in outcome.warnings:
        say(f"warning: {warning}")
    if not outcome.complete:
        say(f"the trace is marked incomplete: {info['incomplete_reason']}")
        raise typer.Exit(130 if outcome.interrupted else 1)
