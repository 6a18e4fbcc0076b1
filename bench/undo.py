"""Changes of the machine, put back when a block ends, or at the next start if it was killed.

A step that undoes a change is written into a journal before the change is made. What a killed run
has left is undone by :func:`clean`. The journal is kept where the next boot removes it, as the boot
undoes all of this by itself.
"""

from __future__ import annotations

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
    """Steps to take back, last first."""

    def __init__(self, stack: ExitStack, journal: Path) -> None:
        """Use :func:`undoing`."""
        self._stack, self._journal = stack, journal
        self._steps: list[list[str]] = []

    def later(self, kind: str, *words: object) -> None:
        """Note a step of :data:`STEPS`, to be taken when the block ends; then make the change."""
        step = [kind, *map(str, words)]
        self._steps.append(step)
        self._save()
        self._stack.callback(self._take, step)

    def _take(self, step: list[str]) -> None:
        STEPS[step[0]](*step[1:])
        self._steps.remove(step)
        self._save()

    def _save(self) -> None:
        if not self._steps:
            self._journal.unlink(missing_ok=True)
            return
        self._journal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = {"process": os.getpid(), "began": _began(os.getpid()), "steps": self._steps}
        write_whole(self._journal, json.dumps(kept) + "\n")


@contextmanager
def undoing(name: str, folder: Path = RUNTIME) -> Iterator[Undo]:
    """Give a list of steps that are taken when the block ends; ``name``: of its journal."""
    with ExitStack() as stack:
        yield Undo(stack, folder / f"bench-{name}.json")


def clean(folder: Path = RUNTIME) -> list[str]:
    """Undo what killed runs have left; answers the steps taken, and those that failed, with why."""
    report = []
    for journal in sorted(folder.glob("bench-*.json")):
        try:
            kept = json.loads(journal.read_text(encoding="utf-8"))
            process, began, steps = kept["process"], kept["began"], kept["steps"]
        except (ValueError, KeyError, TypeError, OSError) as error:
            report.append(f"{journal}: cannot be read: {error}")
            continue
        if _began(process) == began:
            continue  # It is at work.
        for kind, *words in reversed(steps):
            line = " ".join([kind, *words])
            try:
                STEPS[kind](*words)
                report.append(line)
            except (OSError, subprocess.SubprocessError, TypeError, KeyError) as error:
                report.append(f"{line}: {error}")
        journal.unlink()
    return report


def _began(process: int) -> str:
    """When a process began, in ticks since the boot; empty when it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _write(path: str, value: str) -> None:
    Path(path).write_text(value, encoding="ascii")


def _command(*words: str) -> None:
    subprocess.run(words, capture_output=True, check=True)


def _group(path: str) -> None:
    """End what runs in a control group, and remove it."""
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


#: How a step is taken; all words are texts, as the journal holds them.
STEPS = {"write": _write, "command": _command, "group": _group, "unlink": _unlink}
