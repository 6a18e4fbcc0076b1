"""Captures a trace: runs an unmodified program under QEMU and records its memory accesses."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Unpack

from nearfar import _engine
from nearfar.declared import capture as declared
from nearfar.errors import NearfarError
from nearfar.output import shows_progress
from nearfar.processes import handling, terminate_as_interrupt
from nearfar.schema import takes
from nearfar.strict import Json
from nearfar.units import rest

PLUGIN = Path(__file__).parent / "_plugin" / "libnearfar_qemu_plugin.so"
"""The QEMU plugin, built by ``make plugin``."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a capture.

    Attributes:
        path: the trace folder.
        exit_code: of the program; ``None`` if a signal or Ctrl-C ended it.
        signal: number of the signal that ended the program, or ``None``.
        interrupted: whether Ctrl-C ended the capture.
        info: contents of ``trace.json``.
        warnings: one line for each program that was not recorded.
    """

    path: Path
    exit_code: int | None
    signal: int | None
    interrupted: bool
    info: Json
    warnings: list[str]

    @property
    def complete(self) -> bool:
        """Whether the trace is complete."""
        return bool(self.info["complete"])


@dataclass(frozen=True)
class Probe:
    """A requirement of captures: its name, whether it is available, why (not), and the fix."""

    name: str
    available: bool
    why: str
    fix: str


def probe() -> list[Probe]:
    """Check QEMU, the plugin and shared memory."""
    return [Probe(**probe) for probe in json.loads(_engine.capture_probe(PLUGIN))]


def default_output(command: Sequence[str]) -> Path:
    """The default trace folder, ``PROGRAM.trace`` in the current folder."""
    name = Path(command[0]).name if command else ""
    return Path(f"{name or 'program'}.trace")


@takes(declared.OPTIONS)
def run(
    command: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Outcome:
    """Run ``command`` under QEMU and write its trace.

    The program's standard streams are those of this process.

    Args:
        command: the program (a path, or a name in ``PATH``) and its arguments; with ``vm_image``,
            a program in that virtual machine; empty with ``vm`` or ``kernel``.
        output: trace folder; by default ``NAME.trace`` in the current folder.
        force: replace an existing trace.
        progress: called about ten times a second with the number of records so far.
        {options}

    Raises:
        NearfarError: the program, QEMU (exit code 3) or the plugin is missing, or the trace
            cannot be written.
        KeyboardInterrupt: Ctrl-C before the program started. Later, the program gets the signal,
            and the capture ends with it; a second Ctrl-C kills the program.
    """
    words = [os.fspath(word) for word in command]
    image = options.get("vm_image")
    user_vm = options.get("vm") or (None if image else options.get("kernel"))
    if user_vm and words:
        why = "no COMMAND is possible with your own disk image; the image decides what runs"
        raise NearfarError(f"--vm: {why}; leave COMMAND out, or use --vm-image instead")
    if not words and not user_vm:
        raise NearfarError("command: is empty; put the program after `--`")
    path = Path(output) if output is not None else default_output([*words, user_vm or ""])
    with ExitStack() as stack:
        if image:
            options = {**options, **stack.enter_context(_image(words, options))}
        stack.enter_context(_interrupts())
        text = _engine.capture_run(
            words,
            path,
            PLUGIN,
            options=dict(options),
            force=force,
            progress=progress or (lambda _: None),
        )
    outcome = json.loads(text)
    end = outcome["end"]  # {"exit": STATUS}, {"signal": NUMBER} or "interrupted"
    codes = end if isinstance(end, dict) else {}
    return Outcome(
        path=path,
        exit_code=codes.get("exit"),
        signal=codes.get("signal"),
        interrupted=end == "interrupted",
        info=outcome["info"],
        warnings=outcome["warnings"],
    )


@takes(declared.OPTIONS)
def capture(
    command: Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    **options: Unpack[declared.Options],
) -> Path:
    """Run ``command`` under QEMU, write its trace, and return the trace folder.

    Raises:
        NearfarError: as :func:`run`.
        KeyboardInterrupt: Ctrl-C; the trace remains, marked incomplete.
    """
    outcome = run(command, output, force=force, progress=meter(), **options)
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome.path


@contextmanager
def _image(command: Sequence[str], options: declared.Options) -> Iterator[declared.Options]:
    """Make the virtual machine that runs ``command``; yields the options that name its kernel."""
    from nearfar.guest import Guest, Hardware, Node, placed
    from nearfar.sizes import list_of, parse_bytes

    for name in ("vm", "kernel", "initrd"):
        if options.get(name):
            raise NearfarError(f"--{name}: conflicts with --vm-image; give only one of them")
    guest = Guest(
        architecture=options.get("arch", "auto"),
        hardware=Hardware(
            (Node(parse_bytes(str(options.get("memory") or "512M"), "--memory"), cpus=1),)
        ),
        packages=list_of(options.get("packages") or ()),
        tasks=options.get("by_task", False),
        parameters=(options.get("append") or "").split(),
    )
    files = dict(map(placed, list_of(options.get("put") or ())))
    with terminate_as_interrupt(), TemporaryDirectory(prefix="nearfar-") as scratch:
        archive = Path(scratch) / "archive"
        kernel = guest.write(archive, command, files)
        yield {
            "kernel": str(kernel.image),
            "initrd": str(archive),
            "append": " ".join(guest.kernel_parameters()),
        }


def meter(total: int | None = None) -> Callable[[int], None] | None:
    """A progress display on standard error; ``None`` if progress is not shown.

    Args:
        total: the number of records at which recording stops, if known.
    """
    if not shows_progress():
        return None
    started = time.monotonic()

    def show(records: int) -> None:
        seconds = time.monotonic() - started
        text = f"capturing: {records / 1e6:,.1f}"
        if total:
            text += f" of {total / 1e6:,.1f} M records{rest(records, total, seconds)}"
        else:
            text += f" M records, {seconds:.0f} s"
        print(f"\r\x1b[K{text}", end="\r", file=sys.stderr, flush=True)

    return show


class _Interrupt(KeyboardInterrupt):
    """SIGINT or SIGTERM; the engine sends ``number`` to the program."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _interrupts() -> AbstractContextManager[None]:
    """Make SIGTERM end a capture as Ctrl-C does."""
    numbers = [signal.SIGTERM]
    # Keep a handler of Ctrl-C that the caller installed.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    return handling(numbers, _interrupt)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if shows_progress():
        print("\r\x1b[Knearfar: waiting for the program to end; once more kills it",
              file=sys.stderr)  # fmt: skip
    raise _Interrupt(number)
