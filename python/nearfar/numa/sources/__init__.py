"""Where descriptions of memory nodes are read from: one file a source, found by its name.

A source is a module of this package with ``SUMMARY`` (a line), ``knows(path, text)`` (whether it is
of this form; ``text`` is empty for a folder) and ``read(path, text)``, which returns
:class:`~nearfar.numa.node.Node`\\ s or raises :class:`~nearfar.errors.NearfarError`.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from nearfar.errors import NearfarError
from nearfar.numa.node import Node
from nearfar.strict import read_file

#: No description is larger; a trace given by mistake would be.
_LARGEST = 64 << 20


def names() -> list[str]:
    """Names of the sources, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def read(path: Path) -> list[Node]:
    """Read the nodes that a file or folder describes.

    Raises:
        NearfarError: no source knows it, or what it holds is damaged.
    """
    text = ""
    if not path.is_dir():
        text = read_file(path, "the description of a machine", _LARGEST).decode(errors="replace")
    for name in names():
        module = importlib.import_module(f"{__name__}.{name}")
        if module.knows(path, text):
            try:
                found: list[Node] = module.read(path, text)
            # Deep nesting, huge numbers, digits of other scripts.
            except (ValueError, RecursionError) as error:
                raise NearfarError(f"{path}: damaged ({name}): {error}; save it again") from None
            return found
    raise NearfarError(f"{path}: not a description that is known; one of {', '.join(names())}")
