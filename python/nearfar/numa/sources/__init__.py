"""Readers of descriptions of memory nodes: one module per format.

A module has ``SUMMARY`` (one line), ``knows(path, text)`` (whether it reads this format; ``text``
is empty for a folder) and ``read(path, text)``, which returns a list of
:class:`~nearfar.numa.node.Node` or raises :class:`~nearfar.errors.NearfarError`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa.node import Node
from nearfar.strict import read_file

#: Maximum bytes of a file, to refuse a trace given by mistake.
_MAX_BYTES = 64 << 20


def names() -> list[str]:
    """Names of the sources, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def read(path: Path) -> list[Node]:
    """Read the nodes that a file or folder describes.

    Raises:
        NearfarError: unknown format, or the content is damaged.
    """
    text = ""
    if not path.is_dir():
        text = read_file(path, "the description of a machine", _MAX_BYTES).decode(errors="replace")
    for name in names():
        module = importlib.import_module(f"{__name__}.{name}")
        if module.knows(path, text):
            try:
                nodes: list[Node] = module.read(path, text)
            # Causes: numbers of over 4300 digits, and digits that `int` refuses (superscripts).
            except (ValueError, RecursionError) as error:
                raise NearfarError(f"{path}: damaged ({name}): {error}; save it again") from None
            return nodes
    raise NearfarError(f"{path}: unknown format; known are {', '.join(names())}")
