"""Configuration for other tools, made from a study's advice: one file an emitter.

An emitter is a module of this package, found by its name (``_`` in it becomes ``-``)::

    SUMMARY = "one line"                       # what it makes
    SUFFIX = ".xml"                            # of the file it would be
    NEEDS = ("vm", "settable_page_bytes")      # keys of a row that it reads
    def emit(row): ...                         # the text, ending in a newline
    def emit_host(host, rows): ...             # if it is a host's: the text for several VMs

Its docstring is its contract: what it sets, what it cannot, when not to use it. A row is a mapping
such as those of :class:`nearfar.advise.AdviseResult`; rows of another study do as well, as long as
they have the keys. What an emitter cannot express it refuses with :class:`NearfarError`: no text
that looks like the advice and is not.

To add one: its file, a test that runs the real tool on its output, and a row in docs/apply.md.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from nearfar.errors import NearfarError, unknown

Row = Mapping[str, Any]


def names(reads: str | None = None) -> list[str]:
    """Names of the emitters, sorted; with ``reads`` those that read this key of a row."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    found = sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))
    return [name for name in found if reads is None or reads in emitter(name).NEEDS]


def emitter(kind: str) -> ModuleType:
    """The module of an emitter.

    Raises:
        NearfarError: there is none of this name.
    """
    known = names()
    if kind not in known:
        raise unknown("--emit: no emitter", kind, known, "one of")
    return importlib.import_module(f"{__name__}.{kind.replace('-', '_')}")


def emit(kind: str, row: Row) -> str:
    """The configuration that puts a row's advice into effect, as text; emitters see a safe name.

    Raises:
        NearfarError: no such emitter, the row lacks a key, or the tool cannot express the advice.
    """
    return str(emitter(kind).emit(_safe(kind, row)))


def emit_host(kind: str, host: str, rows: Sequence[Row]) -> str:
    """The configuration of a host for all its VMs, of an emitter that is one for a host.

    Raises:
        NearfarError: as :func:`emit`.
    """
    return str(emitter(kind).emit_host(safe_name(host), [_safe(kind, row) for row in rows]))


def is_of_host(kind: str) -> bool:
    """Whether what an emitter sets is the host's, so that its VMs have to share it."""
    return hasattr(emitter(kind), "emit_host")


def _safe(kind: str, row: Row) -> Row:
    """The row, if it has what the emitter needs, with a name that is safe."""
    lacking = [key for key in emitter(kind).NEEDS if row.get(key) is None]
    if lacking:
        raise NearfarError(
            f"--emit {kind}: needs {', '.join(lacking)}, which this study does not give"
        )
    return {**row, "vm": safe_name(row["vm"])}


def safe_name(name: object) -> str:
    """A name as a word that means nothing to a shell, to XML or to systemd, and is no option."""
    return re.sub(r"^[.-]|[^A-Za-z0-9._-]", "_", str(name)) or "_"


def file_name(kind: str, name: object) -> str:
    """A file name for the configuration of a VM or host: ``VM.xml``."""
    return safe_name(name) + str(emitter(kind).SUFFIX)
