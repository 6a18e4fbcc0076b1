"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path


def write_aside(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        settle(aside, path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise


def settle(aside: Path, path: Path) -> None:
    """Rename ``aside`` to ``path`` so that after a power cut it is there whole or not at all."""
    _flush(aside)
    aside.replace(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
