"""Runs ``ends.c``, waits for all its processes, and reads its report."""

from __future__ import annotations

import contextlib
import os
import re
import select
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import forks

SOURCE = Path(__file__).with_name("ends.c")
#: nearfar's helper threads and processes, by name.
OWN = {"nearfar-manage": "manager", "nearfar-keep": "keeper", "nearfar-reap": "reaper"}
#: Name of the shared memory that every helper maps.
SHARED = "/memfd:nearfar-run"
#: Seconds after the end of a run in which its processes must end.
PATIENCE = 60.0
#: Summary lines, which every run prints.
SUMMARY = re.compile(
    r"nearfar: (\d[\d.,]* s \(CPU|(Promotions|Faults|Resident|Core file): |Waited )"
)


@dataclass
class Reports:
    """The parsed report file of ``ends.c``.

    Attributes:
        processes: pid by name; None before the process has begun.
        makers: pid of the parent by name.
        ended: names that reported ``ok`` or ``gone``.
        wrong: lines that report wrong data.
        near: names whose pages mostly stayed in fast memory.
    """

    processes: dict[str, int | None]
    makers: dict[str, int]
    ended: set[str]
    wrong: list[str]
    near: set[str]

    @classmethod
    def of(cls, path: Path) -> Reports:
        """Read the file; its last line may be incomplete."""
        found = cls({}, {}, set(), [], set())
        text = path.read_text() if path.exists() else ""
        for line in text[: text.rfind("\n") + 1].splitlines():
            what, name, process = line.split()[:3]
            if what == "fork":
                found.processes.setdefault(name, None)
                found.makers[name] = int(process)
            elif what == "begin":
                found.processes[name] = int(process)
            elif what in ("ok", "gone"):
                found.ended.add(name)
            elif what == "WRONG":
                found.wrong.append(line)
            else:
                found.near.add(name)
        return found

    def lost(self) -> set[str]:
        """Names that never reported an end."""
        wrong = {line.split()[1] for line in self.wrong}
        return set(self.processes) - self.ended - wrong


@dataclass
class Ended:
    """A finished run: exit code, standard error, reports."""

    code: int
    said: str
    reports: Reports

    def reasons(self) -> list[str]:
        return without_summary(self.said)


def without_summary(said: str) -> list[str]:
    """The lines of standard error but nearfar's summary, such as why a process was killed."""
    return [line for line in said.splitlines() if line and not SUMMARY.match(line)]


def run(commands: str, words: Iterable[object], options: Iterable[object], results: Path) -> Ended:
    """Run a program under ``nearfar run`` and wait until all processes close standard output.

    ``commands`` is the socket of a command server (:mod:`forks`).
    """
    given = ["run", *map(str, options), "--", *map(str, words)]
    reader, writer = os.pipe()
    with open(os.devnull) as nothing, tempfile.TemporaryFile("w+") as said:  # noqa: PTH123
        try:
            streams = (nothing.fileno(), writer, said.fileno())
            code = forks.run(commands, given, streams, os.environ)
        finally:
            os.close(writer)
        hang = not drained(reader)
        os.close(reader)
        said.seek(0)
        text = said.read()
    reports = Reports.of(results)
    assert not hang, f"runs on: {reports.lost()}; standard error: {text}"
    return Ended(code, text, reports)


def drained(reader: int) -> bool:
    """Read until all writers have closed the pipe; False if that takes longer than PATIENCE."""
    end = time.monotonic() + PATIENCE
    while (left := end - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0] and not os.read(reader, 1 << 16):
            return True
    return False


def own(pid: int) -> list[tuple[str, int]]:
    """Kind and thread id of each of nearfar's helpers in this process."""
    found = [(OWN[name], task) for task, name in _threads(pid) if name in OWN]
    with contextlib.suppress(OSError):
        if found and SHARED in Path(f"/proc/{pid}/maps").read_text():
            return found
    return []


def _threads(pid: int) -> Iterator[tuple[int, str]]:
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                yield int(task.name), (task / "comm").read_text().strip()
