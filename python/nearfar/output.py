"""Files that are whole or not there."""

from __future__ import annotations

from pathlib import Path


def write_aside(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place."""
    aside = path.with_name(f".{path.name}.partial")
    try:
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)
        raise
