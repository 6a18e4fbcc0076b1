"""The one error that nearfar raises: a clear line and the exit code it asks for."""

from __future__ import annotations


class NearfarError(Exception):
    """Something the user can mend.

    Args:
        message: one line, ``where: what; what to do``.
        exit_code: 1 a stated threshold failed, 2 bad usage or input, 3 a needed tool is absent.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        """Keep the message and the exit code."""
        super().__init__(message)
        self.exit_code = exit_code
