"""Options, columns and registries of all commands, read from ``declared.json``.

``make declared`` writes the JSON and the types in ``declared.pyi``: neither is edited by hand, and
nothing here loads the engine. ``declared.paging`` has ``OPTIONS``, ``ROWS`` and, for type checkers,
``Options`` and ``Row`` of ``nearfar paging``; a further table ``total`` is ``TOTAL_ROWS`` and
``TotalRow``. ``declared.names`` has the registries: ``declared.names.REPLACEMENT``.
"""

from __future__ import annotations

import functools
import json
import keyword
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nearfar.schema import Column, Option, Rows


@functools.cache
def _text() -> dict[str, Any]:
    path = Path(__file__).with_suffix(".json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def module_name(command: str) -> str:
    """The attribute of this module that has a command's declarations."""
    name = command.replace(" ", "_").replace("-", "_")
    return name + "_" if keyword.iskeyword(name) else name


def table_names(table: str) -> tuple[str, str]:
    """The names of a table's declaration and of the type of its rows."""
    if table == "rows":
        return "ROWS", "Row"
    kind = "".join(part.title() for part in table.split("-"))
    return f"{table.replace('-', '_').upper()}_ROWS", f"{kind}Row"


@functools.cache
def __getattr__(name: str) -> SimpleNamespace:
    if name == "names":
        return SimpleNamespace(**{key.upper(): _pairs(key) for key in _text()["registries"]})
    for command, one in _text()["commands"].items():
        if module_name(command) == name:
            return _namespace(one)
    raise AttributeError(f"module 'nearfar.declared' has no attribute {name!r}")


def _namespace(one: dict[str, Any]) -> SimpleNamespace:
    options = tuple(_option(option) for option in one["options"])
    found = SimpleNamespace(OPTIONS=options, Options=dict)
    for name, table in one["tables"].items():
        rows, row = table_names(name)
        setattr(found, rows, _rows(table))
        setattr(found, row, dict)
    return found


def _pairs(registry: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, what) for name, what in _text()["registries"][registry])


def _option(option: dict[str, Any]) -> Option:
    values = dict(option)
    registry = values.pop("registry", "")
    choices = _pairs(registry) if registry else tuple(map(tuple, values.pop("choices", ())))
    return Option(**{**values, "choices": choices})


def _rows(table: dict[str, Any]) -> Rows:
    keys = tuple(tuple(key) if isinstance(key, list) else key for key in table["keys"])
    columns = tuple(Column(**column) for column in table["columns"])
    return Rows(columns=columns, keys=keys, metrics=table["metrics"], seed=table.get("seed"))
