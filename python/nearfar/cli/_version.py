"""``nearfar --version``, which loads nothing slow."""

from __future__ import annotations


def print_version() -> int:
    """Print the version; return the exit code."""
    from nearfar import __version__

    print(f"nearfar {__version__}")
    return 0
