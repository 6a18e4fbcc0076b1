"""A program run without nearfar first: how long it takes bare, and how much memory it has then.

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from nearfar.errors import NearfarError, of_system
from nearfar.processes import handling, running

#: What `nearfar run` has the program load, and its variable (``crates/live/src/setup.rs``).
LIBRARY: Final = Path(__file__).parent / "_live" / "libnearfar_preload.so"
_VARIABLE: Final = "NEARFAR_RUN"

#: Seconds from one look at the program's memory to the next: least, and most.
_LOOK: Final = (0.005, 0.05)
#: Part of a processor that looking takes at most, unless that is too seldom.
_SHARE: Final = 0.02
_STATUS: Final = re.compile(r"^(VmHWM|RssAnon|RssFile|RssShmem):\s*(\d+) kB$", re.MULTILINE)

#: Discards what is written to it, as /dev/null does. But some programs (grep, tar) recognise
#: /dev/null and do less work there.
_SINK: Final = "/dev/zero"


@dataclass(frozen=True)
class Alone:
    """What a program came to without nearfar.

    Attributes:
        seconds: from start to end.
        resident_bytes: most private memory (RssAnon) that one of its processes had at a moment that
            was looked at.
        exit_code: the program's; 128 + N when signal N ended it.
    """

    seconds: float
    resident_bytes: int
    exit_code: int


def check_input(place: str) -> int | None:
    """Refuse a standard input that cannot be read twice.

    Args:
        place: the option that wants the program run twice, for the message.

    Returns:
        The position in a file; None for a terminal, /dev/null, and a closed standard input.

    Raises:
        NearfarError: it is something else.
    """
    try:
        found = os.fstat(0)
        if stat.S_ISREG(found.st_mode):
            return os.lseek(0, 0, os.SEEK_CUR)
        if os.isatty(0) or found.st_rdev == Path(os.devnull).stat().st_rdev:
            return None
    except OSError:
        return None
    raise NearfarError(
        f"{place}: runs the program twice, and standard input can be read only once; redirect it "
        "from a file (`< FILE`) or from nothing (`< /dev/null`)"
    )


def measure(command: Sequence[str], place: str = "--alone") -> Alone:
    """Run ``command`` without nearfar and measure it.

    Its standard input is this process's, and is rewound. What it prints is discarded.

    Args:
        command: program (a path, or a name in ``PATH``) and arguments.
        place: the option that asks for it, for messages.

    Raises:
        NearfarError: it cannot be run; standard input cannot be read twice.
        KeyboardInterrupt: Ctrl-C came meanwhile, and the program has ended.
    """
    position = check_input(place)
    interrupts = []

    # Ctrl-C is the program's, which the terminal sends it to.
    def note(number: int, _frame: FrameType | None) -> None:
        interrupts.append(number)

    with handling([signal.SIGINT], note):
        found = _run(command)
    if interrupts:
        raise KeyboardInterrupt
    if position is not None:
        os.lseek(0, position, os.SEEK_SET)
    return found


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
    """The sink; None, for leave it as it is, where a stream is /dev/null or closed already."""
    try:
        is_null = os.fstat(stream).st_rdev == Path(os.devnull).stat().st_rdev
    except OSError:
        is_null = True
    return None if is_null else sink


def _environment() -> dict[str, str]:
    """That of this process, less what an outer ``nearfar run`` has put into it."""
    found = {name: value for name, value in os.environ.items() if name != _VARIABLE}
    libraries = [one for one in found.pop("LD_PRELOAD", "").split(":") if one]
    kept = [one for one in libraries if Path(one).name != LIBRARY.name]
    return found | ({"LD_PRELOAD": ":".join(kept)} if kept else {})


def _watch(pid: int) -> int:
    """Wait for the end of a process; the most private memory that it, or one it started, had."""
    ended = os.pidfd_open(pid)
    known = {pid: _Memory()}
    most, rest = 0, 0.0
    try:
        waiting = select.poll()
        waiting.register(ended, select.POLLIN)
        while not waiting.poll(1000 * rest):
            used = time.thread_time()
            for one, memory in tuple(known.items()):
                if not memory.look(one):
                    most = max(most, known.pop(one).most)
                for child in _children(one):
                    known.setdefault(child, _Memory())
            wanted = (time.thread_time() - used) / _SHARE
            rest = min(max(_LOOK[0], wanted), _LOOK[1])
    finally:
        os.close(ended)
    return max(most, *(memory.most for memory in known.values())) if known else most


@dataclass
class _Memory:
    """Memory of a process, in bytes."""

    seen: int = 0
    """Most private memory at a look."""
    files: int = 0
    """Most memory of files and shared memory at a look."""
    peak: int = 0
    """Most of both at any moment, which the kernel keeps while the process runs."""

    @property
    def most(self) -> int:
        """Most private memory, of what passed between two looks as well."""
        return max(self.seen, self.peak - self.files)

    def look(self, pid: int) -> bool:
        """Look at a process; whether it is there."""
        try:
            text = Path(f"/proc/{pid}/status").read_text(errors="replace")
        except OSError:
            return False
        found = {name: 1024 * int(number) for name, number in _STATUS.findall(text)}
        # One that has ended has none of these until it is waited for.
        if "VmHWM" in found:
            # The peak is that of the program it runs now.
            self.peak = found["VmHWM"]
            self.seen = max(self.seen, found.get("RssAnon", 0))
            self.files = max(self.files, found.get("RssFile", 0) + found.get("RssShmem", 0))
        return True


def _children(pid: int) -> Iterator[int]:
    """Processes that the threads of a process have started and that run."""
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                yield from map(int, (thread / "children").read_text().split())
