"""The one error that nearfar raises: a clear line and the exit code it asks for."""

from __future__ import annotations

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


def _plain(letter: str) -> str:
    """A letter as it is; what would end the line or tell the terminal something, escaped."""
    return letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
