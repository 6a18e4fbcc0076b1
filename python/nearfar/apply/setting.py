"""The kernel's page sizes for anonymous memory: what can be set, and setting it until the end.

``/sys/kernel/mm/transparent_hugepage`` holds one switch for huge pages (``enabled``) and, since
Linux 6.8, one for each size (``hugepages-64kB/enabled``):
https://docs.kernel.org/admin-guide/mm/transhuge.html. They hold for the whole machine.

A change is undone by whoever is left. It is written into a journal before it is made; a watchdog
process that waits for the end of this one undoes it when this one is killed; where the watchdog was
killed too, the next run or :func:`restore` finds the journal. The first two know what to undo
without the journal, which the command may have deleted. A lock, which the watchdog holds as well,
keeps two changes apart.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Final

from nearfar.errors import NearfarError
from nearfar.output import write_whole

#: Where the kernel has its switches, and where journal and lock are kept until the next boot.
SYSFS: Final = Path("/sys/kernel/mm/transparent_hugepage")
RUNTIME: Final = Path("/run/nearfar")
#: Size of the pages that are not huge, bytes.
BASE: Final = os.sysconf("SC_PAGE_SIZE")
_WORDS: Final = ("always", "inherit", "madvise", "never")
_FOLDER: Final = re.compile(r"hugepages-(\d+)kB")
_ADVICE: Final = {
    errno.EACCES: "run as root",
    errno.EPERM: "run as root",
    errno.EROFS: "it is mounted read-only, as in a container; run it outside",
}
#: Seconds to wait for the lock: a watchdog may be putting back what a killed run has left.
_PATIENCE: Final = 2.0
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Change:
    """One switch: the file below :data:`SYSFS`, its word now, and the word to write."""

    file: str
    was: str
    becomes: str


@dataclass(frozen=True)
class Plan:
    """What gives a command pages of one size.

    Attributes:
        page_bytes: the size.
        base_bytes: the size of the pages that are not huge.
        changes: switches of the machine, in the order in which they are written.
        disable: whether the command itself must use no huge pages (``PR_SET_THP_DISABLE``).
    """

    page_bytes: int
    base_bytes: int
    changes: tuple[Change, ...]
    disable: bool


def switches(sysfs: Path = SYSFS) -> dict[int, str]:
    """Find the file of the switch of each page size above the base, below ``sysfs``.

    Raises:
        NearfarError: the kernel has no transparent huge pages (exit code 3).
    """
    found = {}
    for folder in sysfs.glob("hugepages-*kB"):
        size = _FOLDER.fullmatch(folder.name)
        if size and (folder / "enabled").is_file():
            found[int(size[1]) * 1024] = f"{folder.name}/enabled"
    if not found and (sysfs / "hpage_pmd_size").is_file():
        # Before Linux 6.8 there was one size and one switch.
        found[int((sysfs / "hpage_pmd_size").read_text(encoding="ascii"))] = "enabled"
    if not found:
        raise NearfarError(
            f"{sysfs}: not there; this kernel has no transparent huge pages "
            "(CONFIG_TRANSPARENT_HUGEPAGE), so it has pages of one size only",
            3,
        )
    return dict(sorted(found.items()))


def acting(sysfs: Path = SYSFS) -> dict[int, str]:
    """The word in force for each page size above the base.

    Raises:
        NearfarError: the kernel has no transparent huge pages (exit code 3).
    """
    whole = _word(sysfs / "enabled")
    words = {size: _word(sysfs / file) for size, file in switches(sysfs).items()}
    return {size: whole if word == "inherit" else word for size, word in words.items()}


def plan(page_bytes: int, sysfs: Path = SYSFS, *, asking: bool = False) -> Plan:
    """Work out what gives a command pages of ``page_bytes``; nothing is changed.

    The size is switched to ``always``. Other sizes that the kernel would hand out unasked go to
    ``madvise``, so that programs that ask for them still get them.

    A command that asks (``MADV_HUGEPAGE``), as QEMU does for a guest's memory, would get the
    largest of those. With ``asking`` the size is ``madvise``, all others are ``never``, and what
    does not ask is left alone.

    Raises:
        NearfarError: this kernel cannot; the message names the nearest size that it can.
    """
    if page_bytes == BASE:
        return Plan(page_bytes, BASE, (), True)
    found = switches(sysfs)
    if page_bytes not in found:
        sizes = [BASE, *found]
        nearest = min(sizes, key=lambda size: (abs(math.log2(size / page_bytes)), size))
        listed = ", ".join(short(size) for size in sizes)
        raise NearfarError(
            f"--page {short(page_bytes)}: this kernel cannot set it; "
            f"the nearest that it can is {short(nearest)} (of {listed})"
        )
    changes = []
    for size, acts in acting(sysfs).items():
        file = found[size]
        word = _word(sysfs / file)
        if asking:
            wanted = "madvise" if size == page_bytes else "never"
            needed = acts != wanted
        else:
            wanted = "always" if size == page_bytes else "madvise"
            needed = (acts == "always") != (size == page_bytes)
        if needed:
            changes.append(Change(file, word, wanted))
    return Plan(page_bytes, BASE, tuple(changes), False)


@contextmanager
def applied(
    page_bytes: int, sysfs: Path = SYSFS, runtime: Path = RUNTIME, *, asking: bool = False
) -> Iterator[Plan]:
    """Make the changes of :func:`plan` for as long as the block lasts, whatever ends it.

    Returns the plan, made again once the lock is held and what a killed run has left is undone.

    Raises:
        NearfarError: as :func:`plan`; a switch may not or cannot be written; another change is
            under way.
    """
    journal = runtime / "apply.json"
    planned = plan(page_bytes, sysfs, asking=asking)
    if planned.disable or not (planned.changes or journal.exists()):
        yield planned
        return
    with _locked(runtime) as lock:
        _undo(journal, sysfs)
        planned = plan(page_bytes, sysfs, asking=asking)
        boot = _BOOT.read_text(encoding="ascii").strip()
        kept = {"boot": boot, "changes": [asdict(change) for change in planned.changes]}
        write_whole(journal, json.dumps(kept) + "\n", force=True)
        guard = _Watchdog(planned.changes, journal, sysfs, lock)
        try:
            for change in planned.changes:
                _write(sysfs / change.file, change.becomes)
            yield planned
        finally:
            try:
                _put_back(planned.changes, sysfs)
                journal.unlink(missing_ok=True)
            finally:
                guard.dismiss()


def restore(sysfs: Path = SYSFS, runtime: Path = RUNTIME) -> list[Change]:
    """Undo what a run that was killed, and its watchdog with it, has left changed.

    Returns:
        The changes that were undone.

    Raises:
        NearfarError: a run is under way, or a switch cannot be written.
    """
    if not (runtime / "apply.json").exists():
        return []
    with _locked(runtime):
        return _undo(runtime / "apply.json", sysfs)


@contextmanager
def _locked(runtime: Path) -> Iterator[int]:
    try:
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = runtime.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise NearfarError(
                f"{runtime}: others may change the journal in it; remove it, or make it yours "
                "alone (chown, chmod 700)"
            )
        # O_CLOEXEC is Python's default: the command does not inherit the lock.
        lock = os.open(runtime / "apply.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise NearfarError(f"{runtime}: {error.strerror}; run as root") from None
    try:
        end = time.monotonic() + _PATIENCE
        while not _take(lock):
            if time.monotonic() > end:
                raise NearfarError(
                    f"{runtime / 'apply.lock'}: another `nearfar apply` is under way; "
                    "wait for its end"
                )
            time.sleep(0.02)
        yield lock
    finally:
        os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _undo(journal: Path, sysfs: Path) -> list[Change]:
    """Undo what the journal says and remove it."""
    try:
        kept = json.loads(journal.read_text(encoding="utf-8"))
        boot, changes = kept["boot"], [Change(**each) for each in kept["changes"]]
        if not all(isinstance(word, str) for each in changes for word in astuple(each)):
            raise TypeError("a change holds more than words")
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        # It was written to a temporary file and renamed, so it is not a half of one.
        raise NearfarError(
            f"{journal}: damaged ({error}); see what is set below {sysfs}, then delete it"
        ) from None
    # After a boot the kernel has its own words again.
    same = boot == _BOOT.read_text(encoding="ascii").strip()
    undone = _put_back(changes, sysfs) if same else []
    journal.unlink(missing_ok=True)
    return undone


def _put_back(changes: Sequence[Change], sysfs: Path) -> list[Change]:
    """Undo changes, the last first, and answer which; what others have set since stays."""
    undone, failed = [], None
    for change in reversed(changes):
        file = sysfs / change.file
        try:
            if change.was in _WORDS and file.exists() and _word(file) == change.becomes:
                _write(file, change.was)
                undone.append(change)
        except NearfarError as error:
            failed = error
    if failed is not None:
        raise failed
    return undone


class _Watchdog:
    """A process that undoes the changes when this process ends without :meth:`dismiss`."""

    def __init__(self, changes: Sequence[Change], journal: Path, sysfs: Path, lock: int) -> None:
        alive, self._end = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                if not self._stand_by(alive, lock):
                    _put_back(changes, sysfs)
                    journal.unlink(missing_ok=True)
            finally:
                os._exit(0)
        os.close(alive)

    def _stand_by(self, alive: int, lock: int) -> bool:
        """Wait for the end of our parent; whether it has undone the changes itself."""
        # A session of its own: what is typed at, or hangs up, the terminal does not reach it.
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        # Holding the pipes of others open would keep their readers waiting.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        kept = {0, 1, 2, alive, lock}
        for opened in [int(each.name) for each in Path("/proc/self/fd").iterdir()]:
            if opened not in kept:
                with suppress(OSError):
                    os.close(opened)
        # Nothing is read when the last writer, our parent, is gone.
        return os.read(alive, 1) != b""

    def dismiss(self) -> None:
        """Let it end with nothing to do."""
        os.write(self._end, b".")
        os.close(self._end)
        os.waitpid(self._pid, 0)


def _word(file: Path) -> str:
    """The word in force: in brackets, where the kernel lists all that it knows."""
    text = file.read_text(encoding="ascii")
    chosen = re.search(r"\[(\w+)\]", text)
    return chosen[1] if chosen else text.strip()


def _write(file: Path, word: str) -> None:
    try:
        file.write_text(word, encoding="ascii")
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "this kernel refuses it; choose another size")
        raise NearfarError(f"{file}: cannot be set to {word}: {error.strerror}; {advice}") from None


def short(size: int) -> str:
    """Write a page size as the command line takes it: ``64K``, ``2M``."""
    for unit, power in (("G", 30), ("M", 20), ("K", 10)):
        if size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)
