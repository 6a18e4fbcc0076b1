"""Configuration for other tools, made from the advice of a study: one module per emitter.

An emitter is a module of this package. Its name is the module's, with ``-`` for ``_``::

    SUMMARY = "one line"                       # what it makes
    SUFFIX = ".xml"                            # file name suffix of the output
    NEEDS = ("vm", "settable_page_bytes")      # keys of a row that it reads
    def emit(row): ...                         # returns the text, which ends in a newline
    def emit_host(host, rows): ...             # only if the setting is per host: text for its VMs

The docstring states what the emitter sets, what it cannot set, and when not to use it. A row is a
mapping, such as a row of :class:`nearfar.advise.AdviseResult`. Rows of other studies work if they
have the keys. An emitter raises :class:`NearfarError` if the tool cannot express the advice; it
never emits an approximation.

To add one: the module, a test that runs the real tool on its output, and a row in docs/apply.md.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from types import ModuleType

from nearfar.errors import NearfarError, unknown

Row = Mapping[str, object]


def names(reads: str | None = None) -> list[str]:
    """Names of the emitters, sorted; with ``reads``, of those that read this key of a row."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    emitters = sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))
    return [name for name in emitters if reads is None or reads in emitter(name).NEEDS]


def emitter(kind: str) -> ModuleType:
    """The module of an emitter.

    Raises:
        NearfarError: no emitter has this name.
    """
    known = names()
    if kind not in known:
        raise unknown("--emit: no emitter", kind, known, "one of")
    return importlib.import_module(f"{__name__}.{kind.replace('-', '_')}")


def emit(kind: str, row: Row) -> str:
    """The configuration that applies the advice of a row, as text.

    Raises:
        NearfarError: no such emitter, the row lacks a key, or the tool cannot express the advice.
    """
    return str(emitter(kind).emit(_checked(kind, row)))


def emit_host(kind: str, host: str, rows: Sequence[Row]) -> str:
    """The configuration of a host for all its VMs; the emitter must be per host.

    Raises:
        NearfarError: as :func:`emit`.
    """
    return str(emitter(kind).emit_host(safe_name(host), [_checked(kind, row) for row in rows]))


def is_of_host(kind: str) -> bool:
    """Whether the emitter's setting is per host, so that its VMs share it."""
    return hasattr(emitter(kind), "emit_host")


def files(kind: str, rows: Sequence[Row], *, fleet: bool) -> tuple[dict[str, str], list[str]]:
    """The texts of the files for rows, by file name, and an error for each that cannot be made.

    Args:
        kind: the emitter.
        rows: one for each program or VM.
        fleet: the rows are VMs on hosts: make one file for each ``machine``, if the setting is per
            host.
    """
    texts: dict[str, str] = {}
    errors = []
    groups: dict[str, list[Row]] = {}
    of_host = fleet and is_of_host(kind)
    for row in rows:
        groups.setdefault(str(row["machine" if of_host else "vm"]), []).append(row)
    for name, group in groups.items():
        file = file_name(kind, name)
        try:
            if file in texts:
                raise NearfarError(f"{name}: another VM has the file {file} already; rename it")
            texts[file] = emit_host(kind, name, group) if of_host else emit(kind, group[0])
        except NearfarError as error:
            errors.append(str(error))
    return texts, errors


def _checked(kind: str, row: Row) -> Row:
    """The row with a safe name.

    Raises:
        NearfarError: the row lacks a key that the emitter needs.
    """
    missing = [key for key in emitter(kind).NEEDS if row.get(key) is None]
    if missing:
        raise NearfarError(
            f"--emit {kind}: needs {', '.join(missing)}, which this study does not compute"
        )
    return {**row, "vm": safe_name(row["vm"])}


def safe_name(name: object) -> str:
    """``name`` without characters special to shells, XML or systemd; never looks like an option."""
    return re.sub(r"^[.-]|[^A-Za-z0-9._-]", "_", str(name)) or "_"


def file_name(kind: str, name: object) -> str:
    """A file name for the configuration of a VM or host: ``VM.xml``."""
    return safe_name(name) + str(emitter(kind).SUFFIX)
