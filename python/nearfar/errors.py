"""The exception of nearfar: a message of one line, and an exit code."""

from __future__ import annotations

import difflib
import errno
from collections.abc import Collection, Iterable

#: Maximum characters of a message, because it may quote a file.
_MAX_LENGTH = 3000


class NearfarError(Exception):
    """An error that the user can fix.

    Args:
        message: one line, ``where: what; what to do``.
        exit_code: 1: incomplete result, or a threshold was not met; 2: bad usage or
            input; 3: a tool is missing.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        """Keep the message and the exit code."""
        plain = "".join(map(_plain, message))
        if len(plain) > _MAX_LENGTH:
            plain = f"{plain[: _MAX_LENGTH // 2]} ... {plain[-_MAX_LENGTH // 2 :]}"
        super().__init__(plain)
        self.exit_code = exit_code


def unknown(what: str, name: str, known: Collection[str], listed: str) -> NearfarError:
    """The error for an unknown name, with the nearest known name and all known names.

    >>> unknown("--emit: no emitter", "qem", ["qemu", "sysfs"], "one of").args[0]
    "--emit: no emitter 'qem'; did you mean qemu? (one of qemu, sysfs)"
    """
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return NearfarError(
        f"{what} {name[:40]!r}; did you mean {near[0]}? ({listed} {', '.join(known)})"
    )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``; did you mean `NAME`?`` with the nearest known name; empty if none is near."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""


def of_system(error: OSError, place: object = None) -> NearfarError:
    """The error for an ``OSError`` at ``place``, by default at its file."""
    where = place or error.filename or "system"
    if error.errno == errno.ENOMEM:
        return no_memory()
    advice = "check the path, permissions and free space"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "raise the limit on open files (`ulimit -n`)"
    return NearfarError(f"{where}: {error.strerror or error}; {advice}")


def no_memory() -> NearfarError:
    """The error for a failed allocation."""
    return NearfarError("out of memory; free some, or raise the limit (`ulimit -v`)")


def _plain(letter: str) -> str:
    """The character, escaped if it is not printable."""
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
