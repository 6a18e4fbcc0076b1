"""Run emitted scripts with a folder in place of /sys, and read commands of emitted units."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

from conftest import HANG

MIB = 1 << 20


def row(size: int, mechanism: str, **more: Any) -> dict[str, Any]:
    """A row of advice with the columns that page size emitters read."""
    return {
        "vm": "web",
        "advised_page_bytes": size,
        "settable_page_bytes": size,
        "mechanism": mechanism,
        "memory_bytes": 5 * MIB + 12345,
        "arch": "x86-64",
        **more,
    }


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with these additional environment variables."""
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=HANG, check=False,
        env={**os.environ, **variables},
    )  # fmt: skip


def played(
    root: Path, script: str, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script with ``root``/sys in place of /sys, and ``root`` first in PATH."""
    text = script.replace("/sys/", f"{root}/sys/")
    path = f"{root}:{os.environ['PATH']}"
    return run("sh", "-ec", text, "sh", *arguments, PATH=path, **variables)


def command_of(unit: str, key: str) -> str:
    """The shell script of a unit's command, unescaped as by systemd."""
    line = re.search(rf"^{key}=(.*)$", unit, re.M)
    assert line
    words = shlex.split(line[1].replace("$$", "$").replace("%%", "%"))
    assert words[:2] == ["/bin/sh", "-ec"] and len(words) == 3
    return words[2]
