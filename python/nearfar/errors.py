"""The one error that nearfar raises: a clear line and the exit code it asks for."""

from __future__ import annotations

import errno

#: Characters of a message, whatever a file held.
_MAX_LENGTH = 3000


class NearfarError(Exception):
    """Something the user can mend.

    Args:
        message: one line, ``where: what; what to do``.
        exit_code: 1 a stated threshold failed, 2 bad usage or input, 3 a needed tool is absent.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        """Keep the message and the exit code."""
        plain = "".join(map(_plain, message))
        if len(plain) > _MAX_LENGTH:
            plain = f"{plain[: _MAX_LENGTH // 2]} ... {plain[-_MAX_LENGTH // 2 :]}"
        super().__init__(plain)
        self.exit_code = exit_code


def of_system(error: OSError, place: object = None) -> NearfarError:
    """The error for one of the operating system, at ``place`` unless it names a file itself."""
    where = place or error.filename or "system"
    if error.errno == errno.ENOMEM:
        return no_memory()
    advice = "check the path, permissions and free space"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "raise the limit on open files (`ulimit -n`)"
    return NearfarError(f"{where}: {error.strerror or error}; {advice}")


def no_memory() -> NearfarError:
    """The error where the system gives no more memory."""
    return NearfarError(
        "memory: there is no more; free some, or raise the limit on it (`ulimit -v`)"
    )


def _plain(letter: str) -> str:
    """A letter as it is; what would end the line or tell the terminal something, escaped."""
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
