"""``nearfar size``: memory, page size and swap for a program."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Unpack, cast

import typer

from nearfar.cli._help import after_dashes
from nearfar.cli._study import (
    Emit,
    Force,
    Format,
    Out,
    check_emitter,
    check_files,
    check_format,
    check_outputs,
    emitted,
    print_result,
    save,
    say,
    say_notes,
)
from nearfar.declared import capture as captured
from nearfar.declared import size as declared
from nearfar.errors import NearfarError
from nearfar.schema import takes, written

if TYPE_CHECKING:
    from nearfar.size import Plan, SizeResult

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar size -- gzip -dc numbers.gz"}
#: Options of `capture` that `size` takes.
_RECORDING: Final = tuple(
    option
    for option in captured.OPTIONS
    if option.name
    in ("sample", "vm", "vm_image", "memory", "cpus", "kernel", "initrd", "append", "start",
        "boot_timeout", "packages", "put", "stop_after")
)  # fmt: skip


@takes((*declared.OPTIONS, *_RECORDING))
def run(
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND... | TRACE...",
            help="A program to record and its arguments, or trace folders, or one TOML file "
            "of a fleet of VMs, or a folder that `nearfar size -o` wrote.",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Trace folder to write when recording a program [default: NAME.trace].",
        ),
    ] = None,
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Show what the program prints, on standard error.")
    ] = False,
    emit: Emit = None,
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> int:
    """Say how much memory, which page size and which swap a program needs.

    A program after `--` is recorded first, with its child processes, as by `nearfar capture`; what
    it prints is not shown. --sample auto records a large program in a fraction of the time, but
    tells nothing about page sizes. --vm-image runs and records it in a virtual machine; --vm
    records your own virtual machine. Limits are advised only if the whole run was recorded.
    """
    import nearfar.size as sizes
    from nearfar.capture import default_output
    from nearfar.cli._progress import progress
    from nearfar.output import shows_progress
    from nearfar.result import RUN

    # The inputs include the words after `--`.
    command, inputs = after_dashes(), inputs or []
    recording, options = _split(options)
    vm_source = recording.get("vm") or recording.get("kernel")
    # A virtual machine is recorded without a command on the host.
    if vm_source and not inputs:
        command, record = [], record or default_output([vm_source])
    if command is None and recording:
        option = next(option.flag for option in _RECORDING if option.name in recording)
        raise NearfarError(f"{option}: is for recording; give --vm, or a program after `--`")
    if command is None and not inputs:
        raise NearfarError("size: give traces, or a program after `--`")
    if command is not None and len(command) != len(inputs):
        raise NearfarError("size: give traces, or a program after `--`, not both")
    check_format(output_format)
    check_outputs(out, force)
    if emit is not None:
        check_emitter("size", emit)
    code = 0
    notes: list[str] = []
    fleet = command is None and any(Path(one).suffix == ".toml" for one in inputs)
    if command is None and len(inputs) == 1 and (Path(inputs[0]) / RUN).exists():
        result = _earlier(Path(inputs[0]), options)
        fleet = result.run["fleet"] is not None
    else:
        plan = _plan(inputs, command, record, show_output, options)
        if emit is not None and out is None:
            check_files(emit, plan.vms, fleet=fleet)
        if command is not None:
            code = _record(command, plan.vms[0].trace, force, show_output, recording)
        names = ", ".join(vm.name for vm in plan.vms)
        watching = progress(f"size {names}", plan.references if shows_progress() else None)
        with watching as on_progress:
            result = sizes.carry_out(plan, on_progress)
        if code == 1 and record is None and out is None:
            trace = plan.vms[0].trace
            shutil.rmtree(trace)
            notes.append(f"{trace} was removed, as the run failed; --record FOLDER keeps it")
    texts, errors = emitted(emit, result.rows, fleet=fleet)
    save(result, out, force, texts=texts)
    print_result(result, output_format, texts=texts if out is None else None)
    say_notes([*result.notes, *notes, *errors])
    return code or (1 if errors else 0)


def _split(options: declared.Options) -> tuple[captured.Options, declared.Options]:
    """The recording's options that differ from their defaults, and the study's options."""
    defaults = {option.name: option.default for option in _RECORDING}
    given = cast("dict[str, object]", options)
    recording = {name: value for name, value in given.items() if defaults.get(name, value) != value}
    others = {name: value for name, value in given.items() if name not in defaults}
    return cast("captured.Options", recording), cast("declared.Options", others)


def _plan(
    inputs: Sequence[str],
    command: list[str] | None,
    record: Path | None,
    show_output: bool,
    options: declared.Options,
) -> Plan:
    """The plan for traces, a fleet, or a program to record."""
    from nearfar.capture import default_output
    from nearfar.size import Plan

    if command is not None:
        return Plan.of(record or default_output(command), **options)
    if record is not None or show_output:
        raise NearfarError("size: --record and --show-output need a program after `--`")
    missing = not Path(inputs[0]).exists()
    if missing and "/" not in inputs[0] and shutil.which(inputs[0]):
        raise NearfarError(
            f"{inputs[0]}: no such trace; to record the program, put `--` before it: "
            f"nearfar size -- {shlex.join(inputs)}"
        )
    return Plan.of(inputs, **options)


def _earlier(folder: Path, options: declared.Options) -> SizeResult:
    """The result that an earlier ``-o`` wrote."""
    from nearfar.run_folder import open_run
    from nearfar.size import SizeResult

    for option in declared.OPTIONS:
        if written(options.get(option.name, option.default)) != written(option.default):
            raise NearfarError(f"{option.flag}: {folder} is a result; give the trace instead")
    result = open_run(folder).result
    if not isinstance(result, SizeResult):
        raise NearfarError(f"{folder}: is no result of `nearfar size`; give a trace")
    return result


def _record(
    command: Sequence[str],
    trace: Path,
    force: bool,
    show_output: bool,
    recording: captured.Options,
) -> int:
    """Record a program with its child processes, or a virtual machine.

    Returns the exit code: 1 if the program failed or the trace is incomplete.
    """
    import nearfar.capture as captures

    show = captures.meter()
    try:
        with _redirected(show_output):
            records_vm = any(recording.get(name) for name in ("vm", "kernel", "vm_image"))
            options: captured.Options = {**recording, "follow_forks": not records_vm}
            outcome = captures.run(list(command), trace, force=force, progress=show, **options)
    except NearfarError as error:
        raise NearfarError(
            str(error).replace("with -o", "with --record"), error.exit_code
        ) from None
    if show is not None:
        print("\x1b[K", end="", file=sys.stderr)  # clear the progress line
    if outcome.exit_code:
        say(f"warning: the program exited with status {outcome.exit_code}")
    for warning in outcome.warnings:
        say(f"warning: {warning}")
    if outcome.interrupted:
        say(f"interrupted; {trace} has what was recorded")
        return 130
    return 0 if outcome.complete and outcome.exit_code == 0 else 1


@contextmanager
def _redirected(shown: bool) -> Iterator[None]:
    """Send standard output to standard error if it is to be shown; otherwise discard it."""
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        if shown:
            os.dup2(2, 1)
        else:
            with Path(os.devnull).open("wb") as null:
                os.dup2(null.fileno(), 1)
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
