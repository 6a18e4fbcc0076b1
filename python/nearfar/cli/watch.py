"""``nearfar watch``: the memory that a running program needs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from nearfar.cli._help import after_dashes
from nearfar.cli._study import (
    Emit,
    Force,
    Format,
    Out,
    check_emitter,
    check_format,
    check_outputs,
    emitted,
    print_result,
    save,
    say_notes,
)
from nearfar.declared import watch as declared
from nearfar.errors import NearfarError
from nearfar.schema import takes

if TYPE_CHECKING:
    from nearfar.report.watch import Live
    from nearfar.watch import Plan
    from nearfar.watch.samples import Watched
    from nearfar.watch.target import Target

    _See = Callable[[Watched], None]

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar watch 1234 --for 60s"}


@takes(declared.OPTIONS)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PID | -- COMMAND...",
            help="A PID, or a program to start (it ends with nearfar) and its arguments. The PID "
            "of a `nearfar run`, or `auto` for the only one, shows that run.",
        ),
    ] = None,
    cgroup: Annotated[
        str | None, typer.Option(metavar="PATH", help="Watch a control group instead of a PID.")
    ] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="NAME", help="Watch a systemd unit instead of a PID.")
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Watch a Docker or Podman container instead of a PID."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Watch until the program ends; print a line when the answer changes by more than "
            "its error.",
        ),
    ] = False,
    prometheus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write each answer as Prometheus metrics (NAME.prom, for node_exporter).",
        ),
    ] = None,
    emit: Emit = None,
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> int:
    """Say how much memory a running program needs: a process, a service, a container.

    It watches which memory the program uses, at a small cost, and sends it no signal. A running
    `nearfar run` is shown every second instead: memory, faults and page migrations of each process.
    """
    check_format(output_format)
    check_outputs(out, force)
    if emit is not None:
        check_emitter("watch", emit)
    given = [bool(words), cgroup is not None, unit is not None, container is not None]
    command = after_dashes()
    pid = None if command is not None or any(given[1:]) else _pid_of(words)
    if command is None and not any(given[1:]) and _is_run(pid):
        _show_run(pid, output_format)
        return 0
    if sum(given) != 1:
        raise NearfarError("watch: give one of: a PID, --cgroup, --unit, --container, -- COMMAND")
    from nearfar.processes import terminate_as_interrupt
    from nearfar.watch import Plan, monitor

    if follow and (emit is not None or options.get("confirm")):
        raise NearfarError("--follow: prints many answers; leave out --emit and --confirm")
    if follow and output_format not in ("table", "json"):
        raise NearfarError(f"--follow: has no format {output_format}; give table or json")
    if prometheus is not None:
        monitor.check_metrics(prometheus, force)
    with terminate_as_interrupt(), _target(words, command, cgroup, unit, container) as target:
        plan = Plan.of(target, **options)
        # Only now, because a command started above would inherit the priority.
        os.nice(19)
        if follow:
            return _follow(plan, output_format, prometheus, out, force)
        return _once(plan, emit, output_format, prometheus, out, force)


def _once(
    plan: Plan,
    emit: str | None,
    output_format: str,
    prometheus: Path | None,
    out: Path | None,
    force: bool,
) -> int:
    """Watch a target; print the answer, or files of ``emit``. Return 1 if a trial refuted it."""
    from nearfar.cli._progress import SECONDS, progress
    from nearfar.watch import carry_out, confirm, monitor

    name = plan.target.name
    with (
        progress(f"watch {name}", round(plan.seconds), SECONDS) as show,
        progress(f"trying the advice on {name}", None, SECONDS) as trying,
    ):
        result = carry_out(
            plan,
            show and (lambda seen: show(_seconds(seen, plan))),
            trying and (lambda seconds: trying(int(seconds))),
        )
    row = result.rows[0]
    texts, _ = emitted(emit, result.rows)
    save(result, out, force, texts=texts)
    if prometheus is not None:
        monitor.write_metrics(prometheus, row, plan.target, time.time())
    print_result(result, output_format, texts=texts if out is None else None)
    return int(confirm.refuted(row, plan.slowdown))


def _follow(
    plan: Plan, output_format: str, prometheus: Path | None, out: Path | None, force: bool
) -> int:
    """Watch a target until it ends or a signal comes; print a line when the answer has changed."""
    from nearfar.report.watch import Live, line
    from nearfar.watch import WatchResult, answers, monitor

    last: WatchResult | None = None
    printed: declared.Row | None = None
    view = Live(plan)
    try:
        with _progress(view, output_format) as (show, say):
            for last in answers(plan, show):
                row, now = last.rows[0], time.time()
                changed = monitor.has_changed(row, printed)
                if prometheus is not None:
                    monitor.write_metrics(prometheus, row, plan.target, now)
                if output_format == "json":
                    say(monitor.json_line(row, now, changed))
                elif changed:
                    say(f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))}  {line(row)}")
                printed, view.answer = (row if changed else printed), row
    except KeyboardInterrupt:
        if last is None:
            raise
    else:
        say_notes([f"{plan.target.name} has ended"])
    finally:
        if last is not None:
            save(last, out, force)
    return 0


@contextmanager
def _progress(view: Live, output_format: str) -> Iterator[tuple[_See, Callable[[str], object]]]:
    """Show progress: the view on a terminal, otherwise a line.

    Yields a function that shows new observations, and one that prints a line.
    """
    from nearfar.cli._progress import SECONDS, clear, live, progress

    if output_format == "table" and sys.stdout.isatty():
        with live(view.view) as console:
            yield view.see, console.print
        return

    def say(text: str) -> None:
        clear()
        sys.stdout.write(f"{text}\n")  # one write: the line stays whole
        sys.stdout.flush()

    plan = view.plan
    with progress(f"watch {plan.target.name}", round(plan.seconds), SECONDS) as show:
        yield (lambda seen: show(_seconds(seen, plan)) if show else None), say


def _seconds(seen: Watched, plan: Plan) -> int:
    """Elapsed seconds, at most the planned ones."""
    return int(min(seen.seconds, plan.seconds))


@contextmanager
def _target(
    words: list[str] | None,
    command: list[str] | None,
    cgroup: str | None,
    unit: str | None,
    container: str | None,
) -> Iterator[Target]:
    """Yield the target. A ``command`` is started, and ended after the ``with`` block."""
    from nearfar.processes import running
    from nearfar.watch import target as targets

    if command is None:
        if cgroup is not None:
            yield targets.of_group(cgroup)
        elif unit is not None:
            yield targets.of_unit(unit)
        elif container is not None:
            yield targets.of_container(container)
        else:
            pid = _pid_of(words)
            assert pid is not None  # `run` handles `auto`
            yield targets.of_pid(pid)
        return
    if shutil.which(command[0]) is None:
        raise NearfarError(f"{command[0]}: no such program; check its name, or give its path")
    with running(command, stdout=sys.stderr.fileno()) as child:
        try:
            target = targets.of_pid(child.pid)
        except NearfarError:
            raise NearfarError(f"{command[0]}: ended before it could be watched") from None
        yield target


def _pid_of(words: list[str] | None) -> int | None:
    """The PID that the user gave; None for ``auto`` or no argument."""
    if words is None or words == ["auto"]:
        return None
    if len(words) != 1 or not words[0].isdecimal() or len(words[0]) > 9:
        raise NearfarError(
            f"watch: {' '.join(words)[:40]!r} is not a process; give its number, or put `--` "
            "before a program to start"
        )
    return int(words[0])


def _is_run(pid: int | None) -> bool:
    """Whether the process is a ``nearfar run``; True for None, which stands for ``auto``."""
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
    from nearfar.cli._progress import live

    snapshots = follow(pid)
    latest = next(snapshots)
    # Ctrl-C ends only the display, not the run.
    with suppress(KeyboardInterrupt), live(lambda: latest.view()):
        for newer in snapshots:
            latest = newer
