"""``nearfar capture``: run a program and write its trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.declared import capture as declared
from nearfar.schema import takes

#: Where `nearfar --help` lists it.
GROUP = "Record"
SETTINGS = {
    "context_settings": {
        "allow_interspersed_args": False,
        # declared.Options of other tools, and what to do instead.
        "obj": {
            "--pid": "capture starts a program and does not attach to one that runs; "
            "write `nearfar capture -- COMMAND...`"
        },
    },
    "epilog": "Example: nearfar capture -o app.trace -- gzip -dc numbers.gz",
}


@takes(declared.OPTIONS)
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--out", help="Trace folder to make [NAME.trace].")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing trace.")] = False,
    **options: Unpack[declared.Options],
) -> None:
    """Run an unmodified x86-64 or aarch64 program and write its trace.

    capture starts the program: it cannot attach to one that runs already (there is no --pid).
    declared.Options of nearfar stand before the program, which has all that follows.

    The program's standard streams are passed through; a summary goes to standard error. Exit code
    0 when the trace is complete, whatever the program answered; 130 after Ctrl-C.
    """
    import nearfar.capture as captures
    from nearfar.cli._progress import given

    show = captures.meter(given(options.get("stop_after") or options.get("max_refs")))
    waited = options.get("start_on") or ""
    said = not waited

    def on_progress(records: int) -> None:
        nonlocal said
        if not said:  # now that it is caught
            said = True
            words = f"recording begins on {waited}: kill -{waited[3:]} {os.getpid()}"
            print(f"nearfar: {words}", file=sys.stderr, flush=True)
        if show is not None:
            show(records)

    outcome = captures.run(command, output, force=force, progress=on_progress, **options)
    if show is not None:
        print("\x1b[K", end="", file=sys.stderr)
    info = outcome.info
    threads = len(info["threads"])
    pages = sum(info["pages_by_kinds"].values())
    size = sum(part["bytes"] for part in info["parts"])
    print(
        f"nearfar: {outcome.path}: {info['records']:,} records, {info['instructions']:,} "
        f"instructions, {threads} thread{'s' * (threads != 1)}, {pages:,} pages of 4 KiB, "
        f"{size:,} bytes",
        file=sys.stderr,
    )
    if outcome.exit_code:
        print(f"nearfar: the program exited with status {outcome.exit_code}", file=sys.stderr)
    if outcome.signal is not None:
        print(f"nearfar: signal {outcome.signal} ended the program", file=sys.stderr)
    for warning in outcome.warnings:
        print(f"nearfar: warning: {warning}", file=sys.stderr)
    if not outcome.complete:
        why = info["incomplete_reason"]
        print(f"nearfar: the trace is marked incomplete: {why}", file=sys.stderr)
        raise typer.Exit(130 if outcome.interrupted else 1)
