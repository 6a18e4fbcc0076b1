"""Readers of descriptions of memory nodes: one module per format."""

from __future__ import annotations

from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa.node import Node
from nearfar.numa.sources import acpi, sysfs
from nearfar.strict import read_file

#: Maximum bytes of a file, to refuse a trace given by mistake.
_MAX_BYTES = 64 << 20


def read(path: Path) -> list[Node]:
    """Read the nodes that a file or folder describes.

    Raises:
        NearfarError: unknown format, or the content is damaged.
    """
    try:
        if path.is_dir():
            if sysfs.knows(path):
                return sysfs.read(path)
        else:
            data = read_file(path, "the description of a machine", _MAX_BYTES)
            text = data.decode(errors="replace")
            if acpi.knows(text):
                return acpi.read(path, text)
    # Causes: numbers of over 4300 digits, and digits that `int` refuses (superscripts).
    except ValueError as error:
        raise NearfarError(f"{path}: damaged: {error}; save it again") from None
    raise NearfarError(f"{path}: unknown format; known are acpi, sysfs")
