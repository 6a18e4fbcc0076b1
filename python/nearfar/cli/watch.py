"""``nearfar watch``: a running ``nearfar run``, seen from another terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from nearfar.cli._study import Format, check_format, print_result
from nearfar.errors import NearfarError

GROUP = "Run"
SETTINGS = {"epilog": "Example: nearfar watch"}


def run(
    process: Annotated[
        str,
        typer.Argument(
            metavar="PID",
            help="Process of `nearfar run` or of its program; auto: the only run of this user.",
        ),
    ] = "auto",
    output_format: Format = "table",
) -> None:
    """Show a running `nearfar run`: memory, faults and moves of each process, every second.

    A terminal shows a table until the run ends or Ctrl-C. Otherwise, and with another format, the
    output is one snapshot.
    """
    check_format(output_format, instead="")
    pid = None if process == "auto" else _number(process)
    from nearfar.live_watch import snapshot, watch

    if output_format != "table" or not sys.stdout.isatty():
        print_result(snapshot(pid), output_format)
        return
    from rich.live import Live

    from nearfar.report.tables import console

    snapshots = watch(pid)
    # Ctrl-C only ends watching.
    with suppress(KeyboardInterrupt), Live(console=console(), auto_refresh=False) as screen:
        for each in snapshots:
            screen.update(each.view(), refresh=True)


def _number(process: str) -> int:
    if not process.isdecimal() or len(process) > 9:
        raise NearfarError(
            f"watch: {process[:40]!r} is not a process; give its number, or auto for the only run"
        )
    return int(process)
