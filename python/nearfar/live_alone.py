"""Run a program without nearfar and measure its time and memory.

>>> import nearfar.live_alone
>>> nearfar.live_alone.measure(["sort", "big.txt"]).seconds                 # doctest: +SKIP
"""

from __future__ import annotations

import os
import re
import select
import signal
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from nearfar.errors import NearfarError, of_system
from nearfar.processes import children, handling, running

#: The library that `nearfar run` preloads.
LIBRARY: Final = Path(__file__).parent / "_live" / "libnearfar_preload.so"
#: The environment variable of that library (``crates/live/src/setup.rs``).
_VARIABLE: Final = "NEARFAR_RUN"

#: Minimum and maximum seconds between samples of the program's memory.
_INTERVAL: Final = (0.005, 0.05)
#: Share of a processor that sampling may use, within the limits of the interval.
_SHARE: Final = 0.02
_STATUS: Final = re.compile(r"^(VmHWM|RssAnon|RssFile|RssShmem):\s*(\d+) kB$", re.MULTILINE)

#: Discards output like /dev/null, which some programs (grep, tar) recognise and then do less work.
_SINK: Final = "/dev/zero"


@dataclass(frozen=True)
class Alone:
    """The time and memory of a program without nearfar.

    Attributes:
        seconds: wall time.
        resident_bytes: peak private memory of its largest process.
        exit_code: of the program; 128 + N if signal N ended it.
    """

    seconds: float
    resident_bytes: int
    exit_code: int


def check_input(place: str) -> int | None:
    """Refuse a standard input that cannot be read twice.

    Args:
        place: the option that the message names.

    Returns:
        The position in a file; None for a terminal, /dev/null or a closed standard input.

    Raises:
        NearfarError: standard input is something else.
    """
    try:
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(0, 0, os.SEEK_CUR)
        if os.isatty(0) or status.st_rdev == Path(os.devnull).stat().st_rdev:
            return None
    except OSError:
        return None
    raise NearfarError(
        f"{place}: runs the program twice, and standard input can be read only once; redirect it "
        "from a file (`< FILE`) or from nothing (`< /dev/null`)"
    )


def measure(command: Sequence[str], place: str = "--alone") -> Alone:
    """Run ``command`` without nearfar and measure it.

    It inherits standard input, which is rewound afterwards. Its output is discarded.

    Args:
        command: program (a path, or a name in ``PATH``) and arguments.
        place: the option that messages name.

    Raises:
        NearfarError: the program cannot be run, or standard input cannot be read twice.
        KeyboardInterrupt: Ctrl-C was pressed; the program has ended.
    """
    position = check_input(place)
    interrupts = []

    # The terminal sends Ctrl-C to the program as well, which handles it.
    def note(number: int, _frame: FrameType | None) -> None:
        interrupts.append(number)

    with handling([signal.SIGINT], note):
        alone = _run(command)
    if interrupts:
        raise KeyboardInterrupt
    if position is not None:
        os.lseek(0, position, os.SEEK_SET)
    return alone


def _run(command: Sequence[str]) -> Alone:
    began = time.monotonic()
    try:
        with (
            Path(_SINK).open("wb") as sink,
            running(
                command, stdout=_or_null(1, sink.fileno()), stderr=_or_null(2, sink.fileno()),
                env=_environment(),
            ) as child,
        ):  # fmt: skip
            resident = _watch(child.pid)
            seconds = time.monotonic() - began
            code = child.wait()
    except OSError as error:
        raise of_system(error, command[0]) from None
    return Alone(seconds, resident, code if code >= 0 else 128 - code)


def _or_null(stream: int, sink: int) -> int | None:
    """The sink for a stream; None, to inherit the stream, if it is /dev/null or closed."""
    try:
        is_null = os.fstat(stream).st_rdev == Path(os.devnull).stat().st_rdev
    except OSError:
        is_null = True
    return None if is_null else sink


def _environment() -> dict[str, str]:
    """The environment, without what an outer ``nearfar run`` added to it."""
    environment = {name: value for name, value in os.environ.items() if name != _VARIABLE}
    libraries = [path for path in environment.pop("LD_PRELOAD", "").split(":") if path]
    others = [path for path in libraries if Path(path).name != LIBRARY.name]
    return environment | ({"LD_PRELOAD": ":".join(others)} if others else {})


def _watch(pid: int) -> int:
    """Wait for a process to end; returns the peak private memory of the largest in its tree."""
    pidfd = os.pidfd_open(pid)
    processes = {pid: _Memory()}
    peak, interval = 0, 0.0
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(1000 * interval):
            began = time.thread_time()
            for number, memory in tuple(processes.items()):
                if not memory.sample(number):
                    peak = max(peak, processes.pop(number).private)
                for child in children(number):
                    processes.setdefault(child, _Memory())
            wanted = (time.thread_time() - began) / _SHARE
            interval = min(max(_INTERVAL[0], wanted), _INTERVAL[1])
    finally:
        os.close(pidfd)
    return max([peak, *(memory.private for memory in processes.values())])


@dataclass
class _Memory:
    """Peaks of a process's memory, in bytes.

    Attributes:
        sampled: private memory, sampled.
        files: memory of files and shared memory, sampled.
        total: all memory, as the kernel counts it (VmHWM).
    """

    sampled: int = 0
    files: int = 0
    total: int = 0

    @property
    def private(self) -> int:
        """Peak private memory: the larger of two lower bounds; VmHWM has peaks between samples."""
        return max(self.sampled, self.total - self.files)

    def sample(self, pid: int) -> bool:
        """Sample a process; returns whether it exists."""
        try:
            text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        except OSError:
            return False
        values = {name: 1024 * int(number) for name, number in _STATUS.findall(text)}
        # A zombie has none of these.
        if "VmHWM" in values:
            # Not the maximum: execve resets VmHWM, and an older value is of another program.
            self.total = values["VmHWM"]
            self.sampled = max(self.sampled, values.get("RssAnon", 0))
            self.files = max(self.files, values.get("RssFile", 0) + values.get("RssShmem", 0))
        return True
