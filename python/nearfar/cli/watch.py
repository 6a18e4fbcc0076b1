"""``nearfar watch``: the memory that a running program needs."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

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
from nearfar.declared import watch as declared
from nearfar.errors import NearfarError
from nearfar.schema import takes

if TYPE_CHECKING:
    from nearfar.watch.target import Target

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar watch 1234 --for 60s"}


@takes(declared.OPTIONS)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PID | -- COMMAND...",
            help="The number of a running process, or a program to start, and its arguments. "
            "`auto`, or the PID of a `nearfar run`, shows that run.",
        ),
    ] = None,
    cgroup: Annotated[
        str | None, typer.Option(metavar="PATH", help="A control group instead.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="NAME", help="A systemd unit instead.")
    ] = None,
    container: Annotated[
        str | None, typer.Option(metavar="NAME", help="A Docker or Podman container instead.")
    ] = None,
    emit: Annotated[
        str | None,
        typer.Option(metavar="TOOL", help="Print configuration for a tool (docs/apply.md)."),
    ] = None,
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Say how much memory a running program needs: a process, a service, a container.

    It watches which memory the program uses, at a small cost, and sends it no signal. A running
    `nearfar run` is shown every second instead: memory, faults and moves of each process.
    """
    check_format(output_format)
    check_outputs(out, force)
    if emit is not None:
        check_emitter("watch", emit)
    command = after_dashes()
    if command is None and not (cgroup or unit or container):
        pid = _number(words)
        if _is_run(pid):
            _show_run(pid, output_format)
            return
    given = [bool(words), cgroup is not None, unit is not None, container is not None]
    if sum(given) != 1:
        raise NearfarError("watch: give a PID, --cgroup, --unit, --container or -- COMMAND")
    if command is None:
        _watch(_target(words, cgroup, unit, container), emit, output_format, out, force, options)
        return
    import shutil

    from nearfar.processes import running
    from nearfar.watch.target import of_pid

    if shutil.which(command[0]) is None:
        raise NearfarError(f"{command[0]}: no such program; check its name, or give its path")
    with running(command, stdout=sys.stderr.fileno()) as child:
        _watch(of_pid(child.pid), emit, output_format, out, force, options)


def _watch(
    target: Target,
    emit: str | None,
    output_format: str,
    out: Path | None,
    force: bool,
    options: declared.Options,
) -> None:
    """Watch a target, and print the answer or its configuration."""
    import nearfar.watch as study
    from nearfar import emit as emitters
    from nearfar.output import watched

    plan = study.Plan.of(target, **options)

    def show(seconds: float) -> None:
        text = f"watch {target.name}: {seconds:.0f} of {plan.seconds:.0f} s"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    result = study.carry_out(plan, show if watched() else None)
    if watched():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    texts, failed = emitters.files(emit, result.rows, fleet=False) if emit else ({}, [])
    if failed:
        raise NearfarError(failed[0])
    save(result, out, force, texts=texts)
    if texts and out is None:
        print("\n".join(texts.values()), end="")
    else:
        print_result(result, output_format)


def _target(
    words: list[str] | None, cgroup: str | None, unit: str | None, container: str | None
) -> Target:
    from nearfar.watch import target

    if cgroup is not None:
        return target.of_group(cgroup)
    if unit is not None:
        return target.of_unit(unit)
    if container is not None:
        return target.of_container(container)
    pid = _number(words)
    assert pid is not None  # `auto` is a run
    return target.of_pid(pid)


def _number(words: list[str] | None) -> int | None:
    """The PID; None for ``auto``."""
    if words is None or words == ["auto"]:
        return None
    if len(words) != 1 or not words[0].isdecimal() or len(words[0]) > 9:
        raise NearfarError(
            f"watch: {' '.join(words)[:40]!r} is not a process; give its number, or put `--` "
            "before a program to start"
        )
    return int(words[0])


def _is_run(pid: int | None) -> bool:
    """Whether to show a run of ``nearfar run``."""
    if pid is None:
        return True
    from nearfar._engine import LiveWatch

    try:
        LiveWatch(pid)
    except NearfarError:
        return False
    return True


def _show_run(pid: int | None, output_format: str) -> None:
    """Show a run: on a terminal every second, otherwise once."""
    from nearfar.live_watch import snapshot
    from nearfar.live_watch import watch as follow

    if output_format != "table" or not sys.stdout.isatty():
        print_result(snapshot(pid), output_format)
        return
    from rich.live import Live

    from nearfar.report.tables import console

    # Ctrl-C only ends watching.
    with suppress(KeyboardInterrupt), Live(console=console(), auto_refresh=False) as screen:
        for each in follow(pid):
            screen.update(each.view(), refresh=True)
