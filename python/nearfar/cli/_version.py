"""``nearfar --version``, which needs nothing that takes a while to load."""

from __future__ import annotations


def say_version() -> int:
    """Print the version; its exit code."""
    from nearfar import __version__

    print(f"nearfar {__version__}")
    return 0
