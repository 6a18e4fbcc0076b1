"""Machine descriptions: what a machine is made of, how long its accesses take.

>>> machine = load("desktop-nvm")
>>> machine.io_ns("nvm-10x", [512, 4096])
[500.0, 4000.0]
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nearfar import _engine
from nearfar._engine import AccessTimes, Machine
from nearfar.errors import NearfarError
from nearfar.schema import MachineLike

__all__ = [
    "SEARCH",
    "AccessTimes",
    "Machine",
    "MachineLike",
    "load",
    "names",
    "paging_to_storage",
    "parse",
    "parse_set",
    "schema",
    "with_storage",
]

#: Folder in which a machine given by name is looked for before the built-in ones.
SEARCH = Path("machines")


def names() -> list[str]:
    """Names of the built-in machines, sorted."""
    return [name for name, _ in _engine.machine_builtin()]


def paging_to_storage() -> list[str]:
    """Names of the built-in machines that have a storage to page to, sorted."""
    return [name for name in names() if load(name).storages]


def load(
    machine: MachineLike,
    search: Path = SEARCH,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
) -> Machine:
    """Load a machine.

    >>> load("cxl-a", set={"node.slow.read_latency": "200ns"}).set_values
    [('node.slow.read_latency', '200ns')]

    Args:
        machine: a path (it holds a ``/`` or ends in ``.toml``), or a name, looked for as
            ``search/NAME.toml`` and then among the built-in machines; or a machine.
        search: the folder to look in.
        set: values in place of the file's, by key, as ``--set`` (docs/machine.md).

    Raises:
        NearfarError: there is no such machine, or its file is wrong; the message names the file,
            the line and the key. Or a key of ``set`` is unknown or its value wrong.
    """
    found = machine if isinstance(machine, Machine) else Machine.load(str(machine), search)
    if not set:
        return found
    return found.with_values([(key, str(value)) for key, value in set.items()])


def parse_set(texts: list[str]) -> dict[str, str]:
    """Keys and values of ``KEY=VALUE`` texts.

    Raises:
        NearfarError: one has no ``=``.
    """
    values = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value):
            raise NearfarError(
                f"--set {text[:60]}: write KEY=VALUE, such as node.slow.read_latency=200ns"
            )
        values[key] = value
    return values


def with_storage(storage: str, first: str) -> str:
    """Name of a built-in machine that has ``storage``: ``first`` if it does, else by name.

    Raises:
        NearfarError: no built-in machine has it; the message names the nearest that one has.
    """
    known: dict[str, str] = {}
    for name in [first, *names()]:
        for device in load(name).storages:
            known.setdefault(device, name)
    if storage not in known:
        near = difflib.get_close_matches(storage, known, 1, 0.0)
        raise NearfarError(
            f"storage {storage[:40]!r}: no built-in machine has it; did you mean {near[0]}? "
            "or name the machine (see `nearfar machine list`)"
        )
    return known[storage]


def parse(name: str, text: str) -> Machine:
    """Check the text of a machine file; ``name`` is used in messages. Raises as :func:`load`."""
    return Machine.parse(name, text)


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a machine file, made from the types that read it."""
    result: dict[str, Any] = json.loads(_engine.machine_schema())
    return result
