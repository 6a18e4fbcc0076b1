"""``nearfar run --watch``: a run that is under way, looked at from another terminal."""

from __future__ import annotations

import sys
from contextlib import suppress

from nearfar.cli._study import check_format, print_result
from nearfar.errors import NearfarError


def show(process: str, output_format: str) -> None:
    """Show the run of ``process`` until it is over; no more than once where nobody looks.

    Args:
        process: of its launcher or of a program that it manages; ``auto`` for the only run.
        output_format: a table is shown again each second at a terminal; anything else is printed
            once.

    Raises:
        NearfarError: no such run.
    """
    from nearfar.live_watch import snapshot, watch

    check_format(output_format, instead="")
    pid = None if process == "auto" else _number(process)
    if output_format != "table" or not sys.stdout.isatty():
        print_result(snapshot(pid), output_format)
        return
    from rich.live import Live

    from nearfar.report.tables import console

    looks = watch(pid)
    # Ctrl-C is how one stops looking.
    with suppress(KeyboardInterrupt), Live(console=console(), auto_refresh=False) as screen:
        for one in looks:
            screen.update(one.view(), refresh=True)


def _number(process: str) -> int:
    if not process.isdecimal() or len(process) > 9:
        raise NearfarError(
            f"--watch: {process[:40]!r} is no process; give its number, or auto for the only run"
        )
    return int(process)
