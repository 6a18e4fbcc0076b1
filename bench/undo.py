"""Undoes changes of the machine when a block ends, or at the next run if this one is killed.

Before a change, the step that undoes it is written to a journal. A process holds the lock of its
journal, so that one run at a time changes the machine. An unlocked journal was left by a killed
run: the next run executes it. A reboot undoes all these changes, and removes the journals.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nearfar.output import write_whole

#: Where journals are kept until the next boot.
RUNTIME = Path("/run/nearfar")


class Undo:
    """Steps that undo changes, in reverse order, with their journal."""

    def __init__(self, stack: ExitStack, journal: Path) -> None:
        """Called by :func:`undoing` only."""
        self._stack, self._journal = stack, journal
        self._steps: list[list[str]] = []

    def later(self, kind: str, *words: object) -> None:
        """Register the step ``kind`` of :data:`STEPS` and its arguments; call before the change."""
        step = [kind, *map(str, words)]
        self._steps.append(step)
        self._save()
        self._stack.callback(self._execute, step)

    def _execute(self, step: list[str]) -> None:
        STEPS[step[0]](*step[1:])
        self._steps.remove(step)
        self._save()

    def _save(self) -> None:
        if not self._steps:
            self._journal.unlink(missing_ok=True)
            return
        write_whole(self._journal, json.dumps(self._steps) + "\n", force=True)


@contextmanager
def undoing(name: str, folder: Path = RUNTIME) -> Iterator[Undo]:
    """Yield an :class:`Undo` whose steps run when the block ends; ``name`` is that of its journal.

    Waits while another process is in a block of the same name.
    """
    journal = folder / f"bench-{name}.json"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(journal), ExitStack() as stack:
        _execute_all(journal)
        yield Undo(stack, journal)


def clean(folder: Path = RUNTIME) -> list[str]:
    """Execute the journals of killed runs; return a line for each step, with its error if any."""
    report = []
    for journal in sorted(folder.glob("bench-*.json")):
        with suppress(BlockingIOError), _locked(journal, fcntl.LOCK_NB):
            report += _execute_all(journal)
    return report


@contextmanager
def _locked(journal: Path, flags: int = 0) -> Iterator[None]:
    """Hold the lock of a journal; the kernel releases it when the process ends."""
    with journal.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | flags)
        yield


def _execute_all(journal: Path) -> list[str]:
    """Execute the steps of a journal whose process has ended, last first, and remove it."""
    report = []
    try:
        steps = json.loads(journal.read_text(encoding="utf-8"))
        for kind, *words in reversed(steps):
            line = " ".join([kind, *words])
            try:
                STEPS[kind](*words)
                report.append(line)
            except (OSError, subprocess.SubprocessError, TypeError, KeyError) as error:
                report.append(f"{line}: {error}")
    except FileNotFoundError:
        return []
    except (ValueError, TypeError, OSError) as error:
        return [f"{journal}: cannot be read: {error}"]
    journal.unlink()
    return report


def _write(path: str, value: str) -> None:
    Path(path).write_text(value, encoding="ascii")


def _command(*words: str) -> None:
    subprocess.run(words, capture_output=True, check=True)


def _group(path: str) -> None:
    """Kill the processes of a control group, and remove it."""
    group = Path(path)
    for _ in range(100):
        if not group.exists():
            return
        with suppress(OSError):
            for line in (group / "cgroup.procs").read_text(encoding="ascii").split():
                with suppress(ProcessLookupError):
                    os.kill(int(line), signal.SIGKILL)
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.05)
    group.rmdir()


def _unlink(path: str) -> None:
    Path(path).unlink(missing_ok=True)


#: Functions of the steps, by kind. All arguments are strings, because they come from the journal.
STEPS = {"write": _write, "command": _command, "group": _group, "unlink": _unlink}
