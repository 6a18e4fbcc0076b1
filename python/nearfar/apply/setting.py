"""The kernel's page sizes for anonymous memory: temporary changes of the settings.

``/sys/kernel/mm/transparent_hugepage`` has one setting for huge pages (``enabled``) and, since
Linux 6.8, one for each size (``hugepages-64kB/enabled``):
https://docs.kernel.org/admin-guide/mm/transhuge.html. They apply to the whole machine.

The changes last while ``nearfar apply`` runs a command. This process undoes its changes at the end.
If it is killed, a watchdog process undoes them. Neither needs the journal, a list of the changes
that is written before the first one: the command may have deleted it. If the watchdog is killed as
well, the next run or :func:`restore` undoes the changes from the journal. A lock, which the
watchdog also holds, prevents concurrent changes.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Final

from nearfar.errors import NearfarError
from nearfar.output import write_whole
from nearfar.sizes import short

#: The kernel's settings, and the folder of the journal and the lock, which is empty after a boot.
SYSFS: Final = Path("/sys/kernel/mm/transparent_hugepage")
RUNTIME: Final = Path("/run/nearfar")
#: Size of the pages that are not huge, bytes.
BASE: Final = os.sysconf("SC_PAGE_SIZE")
_WORDS: Final = ("always", "inherit", "madvise", "never", "defer", "defer+madvise")
_FOLDER: Final = re.compile(r"hugepages-(\d+)kB")
_ADVICE: Final = {
    errno.EACCES: "run as root",
    errno.EPERM: "run as root",
    errno.EROFS: "it is mounted read-only, as in a container; run it outside",
}
#: Seconds to wait for the lock: a watchdog may be undoing the changes of a killed run.
_LOCK_SECONDS: Final = 2.0
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Change:
    """One setting: the file below :data:`SYSFS`, its value before, and the value to write."""

    file: str
    was: str
    becomes: str


@dataclass(frozen=True)
class Plan:
    """The changes that give a command pages of one size.

    Attributes:
        page_bytes: the size.
        base_bytes: the base page size.
        changes: settings of the machine, in the order in which they are written.
        disable: whether to disable huge pages for the command (``PR_SET_THP_DISABLE``).
        setting: policy, as for ``nearfar thp``; None for a single page size.
    """

    page_bytes: int
    base_bytes: int
    changes: tuple[Change, ...]
    disable: bool
    setting: str | None = None


def switches(sysfs: Path = SYSFS) -> dict[int, str]:
    """The settings file of each page size above the base, relative to ``sysfs``.

    Raises:
        NearfarError: the kernel has no transparent huge pages (exit code 3).
    """
    files = {}
    for folder in sysfs.glob("hugepages-*kB"):
        size = _FOLDER.fullmatch(folder.name)
        if size and (folder / "enabled").is_file():
            files[int(size[1]) * 1024] = f"{folder.name}/enabled"
    if not files and (sysfs / "hpage_pmd_size").is_file():
        # Before Linux 6.8 there was one size and one setting.
        files[int((sysfs / "hpage_pmd_size").read_text(encoding="ascii"))] = "enabled"
    if not files:
        raise NearfarError(
            f"{sysfs}: is missing; this kernel has no transparent huge pages "
            "(CONFIG_TRANSPARENT_HUGEPAGE), so it has only one page size",
            3,
        )
    return dict(sorted(files.items()))


def acting(sysfs: Path = SYSFS) -> dict[int, str]:
    """The effective value for each page size above the base.

    Raises:
        NearfarError: the kernel has no transparent huge pages (exit code 3).
    """
    inherited = _word(sysfs / "enabled")
    words = {size: _word(sysfs / file) for size, file in switches(sysfs).items()}
    return {size: inherited if word == "inherit" else word for size, word in words.items()}


def plan(
    page_bytes: int,
    sysfs: Path = SYSFS,
    *,
    asking: bool = False,
    values: Mapping[str, str] | None = None,
) -> Plan:
    """Plan the changes that give a command pages of ``page_bytes``; nothing is changed.

    The size is set to ``always``. Other sizes that are ``always`` are set to ``madvise``, so that
    programs that request huge pages still get them.

    A command that requests huge pages (``MADV_HUGEPAGE``), as QEMU does for a guest's memory, would
    then get the largest size that is not off. With ``asking``, the size is set to ``madvise`` and
    all others to ``never``; programs that do not request huge pages then get none.

    With ``values`` (by file), these are written instead. All other page sizes are turned off,
    except the largest that the kernel has, which inherits the setting for all sizes.

    Raises:
        NearfarError: this kernel does not support the size; the message names the nearest one.
    """
    if values is not None:
        return Plan(page_bytes, BASE, _changes(values, sysfs), disable=False)
    if page_bytes == BASE:
        return Plan(page_bytes, BASE, (), disable=True)
    files = switches(sysfs)
    if page_bytes not in files:
        sizes = [BASE, *files]
        nearest = min(sizes, key=lambda size: (abs(math.log2(size / page_bytes)), size))
        listed = ", ".join(short(size) for size in sizes)
        raise NearfarError(
            f"--page {short(page_bytes)}: this kernel cannot set it; "
            f"the nearest size that this kernel can set is {short(nearest)} (of {listed})"
        )
    changes = []
    for size, effective in acting(sysfs).items():
        file = files[size]
        word = _word(sysfs / file)
        if asking:
            wanted = "madvise" if size == page_bytes else "never"
            needed = effective != wanted
        else:
            wanted = "always" if size == page_bytes else "madvise"
            needed = (effective == "always") != (size == page_bytes)
        if needed:
            changes.append(Change(file, word, wanted))
    return Plan(page_bytes, BASE, tuple(changes), disable=False)


def _changes(values: Mapping[str, str], sysfs: Path) -> tuple[Change, ...]:
    files = switches(sysfs)
    wanted = {**dict.fromkeys(files.values(), "never"), **values}
    largest = files[max(files)]
    if largest not in values:
        # If it has no value, the largest size follows the setting for all sizes.
        wanted[largest] = "inherit"
    changes = []
    for file, becomes in wanted.items():
        if not (sysfs / file).is_file():
            raise NearfarError(f"{sysfs / file}: is missing; this kernel cannot set {becomes}")
        if (was := _word(sysfs / file)) != becomes:
            changes.append(Change(file, was, becomes))
    return tuple(changes)


@contextmanager
def applied(
    page_bytes: int,
    sysfs: Path = SYSFS,
    runtime: Path = RUNTIME,
    *,
    asking: bool = False,
    values: Mapping[str, str] | None = None,
) -> Iterator[Plan]:
    """Apply :func:`plan` for the duration of the block.

    Yields the plan, made again with the lock held and the changes of a killed run undone.

    Raises:
        NearfarError: as :func:`plan`; a setting cannot be written; another change is in progress.
    """
    journal = runtime / "apply.json"
    planned = plan(page_bytes, sysfs, asking=asking, values=values)
    if planned.disable or not (planned.changes or journal.exists()):
        yield planned
        return
    with _locked(runtime) as lock:
        _undo(journal, sysfs)
        planned = plan(page_bytes, sysfs, asking=asking, values=values)
        boot = _BOOT.read_text(encoding="ascii").strip()
        record = {"boot": boot, "changes": [asdict(change) for change in planned.changes]}
        write_whole(journal, json.dumps(record) + "\n", force=True)
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
    """Undo the changes of a run that was killed together with its watchdog.

    Returns:
        The changes that were undone.

    Raises:
        NearfarError: a run is in progress, or a setting cannot be written.
    """
    if not (runtime / "apply.json").exists():
        return []
    with _locked(runtime):
        return _undo(runtime / "apply.json", sysfs)


@contextmanager
def _locked(runtime: Path) -> Iterator[int]:
    try:
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = runtime.lstat()
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if not ours or status.st_mode & 0o022:
            raise NearfarError(
                f"{runtime}: other users could change the journal in it; remove it, or make "
                "yourself its only user (chown, chmod 700)"
            )
        # The command does not inherit the lock: O_CLOEXEC is Python's default.
        lock = os.open(runtime / "apply.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise NearfarError(f"{runtime}: {error.strerror}; run as root") from None
    try:
        end = time.monotonic() + _LOCK_SECONDS
        while not _try_lock(lock):
            if time.monotonic() > end:
                raise NearfarError(
                    f"{runtime / 'apply.lock'}: another `nearfar apply` is running; wait for its "
                    "end"
                )
            time.sleep(0.02)
        yield lock
    finally:
        os.close(lock)


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _undo(journal: Path, sysfs: Path) -> list[Change]:
    """Undo the changes in the journal and remove it."""
    try:
        record = json.loads(journal.read_text(encoding="utf-8"))
        boot, changes = record["boot"], [Change(**change) for change in record["changes"]]
        if not all(isinstance(word, str) for change in changes for word in astuple(change)):
            raise TypeError("a change has a value that is not text")
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise NearfarError(
            f"{journal}: damaged ({error}); check the settings in {sysfs}, then delete it"
        ) from None
    # A reboot resets the settings.
    same_boot = boot == _BOOT.read_text(encoding="ascii").strip()
    undone = _put_back(changes, sysfs) if same_boot else []
    journal.unlink(missing_ok=True)
    return undone


def _put_back(changes: Sequence[Change], sysfs: Path) -> list[Change]:
    """Undo changes, the last first, except of settings that others have changed since."""
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
                if not self._wait_for_parent(alive, lock):
                    _put_back(changes, sysfs)
                    journal.unlink(missing_ok=True)
            finally:
                os._exit(0)
        os.close(alive)

    def _wait_for_parent(self, alive: int, lock: int) -> bool:
        """Wait for the end of the parent; returns whether it has undone the changes itself."""
        # Signals of the terminal do not reach another session.
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        # Close inherited pipes, or their readers would wait for this process.
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        needed = {0, 1, 2, alive, lock}
        for descriptor in [int(file.name) for file in Path("/proc/self/fd").iterdir()]:
            if descriptor not in needed:
                with suppress(OSError):
                    os.close(descriptor)
        # End of file: the only writer, the parent, has ended.
        return os.read(alive, 1) != b""

    def dismiss(self) -> None:
        """End the watchdog; nothing is left to undo."""
        os.write(self._end, b".")
        os.close(self._end)
        os.waitpid(self._pid, 0)


def _word(file: Path) -> str:
    """The value of a setting: the one in brackets, if the file lists all of them."""
    text = file.read_text(encoding="ascii")
    chosen = re.search(r"\[([\w+]+)\]", text)
    return chosen[1] if chosen else text.strip()


def _write(file: Path, word: str) -> None:
    try:
        file.write_text(word, encoding="ascii")
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "this kernel rejects it; choose another size")
        raise NearfarError(f"{file}: cannot be set to {word}: {error.strerror}; {advice}") from None
