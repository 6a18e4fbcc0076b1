"""A sweep to try, and what its dataset holds: for the tests of sweeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from conftest import DATA
from nearfar.declared.names import REPLACEMENT

#: Three replacements, and how the file lists them.
REPLACEMENTS = [name for name, _ in REPLACEMENT][:3]
LISTED = json.dumps(REPLACEMENTS)

GRID = f"""
study = "paging"

[grid]
trace = ["gzip.trace", "sqlite.trace"]
replacement = {LISTED}

[options]
machine = "optane-ssd"
memory = "50%,100%"
page_sizes = "4K,64K"
"""


def lay_out(folder: Path) -> Path:
    """Put two captures beside a ``study.toml``."""
    for name in ("gzip", "sqlite"):
        shutil.copytree(DATA / "captures" / f"{name}.trace", folder / f"{name}.trace")
    (folder / "study.toml").write_text(GRID, encoding="utf-8")
    return folder


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Every part of a sweep's dataset."""
    return {part.name: part.read_bytes() for part in sorted((folder / "dataset").iterdir())}
