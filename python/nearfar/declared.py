"""Options, columns and registries of all commands, read from ``declared.json``.

A registry lists the names that an option or argument takes, each with its meaning.

``make declared`` writes the JSON and the types in ``declared.pyi``; do not edit them. Nothing here
loads the engine. ``declared.paging`` has ``OPTIONS``, ``ROWS`` and, for type checkers, ``Options``
and ``Row`` of ``nearfar paging``; a further table ``total`` is ``TOTAL_ROWS`` and ``TotalRow``.
``declared.names`` has the registries: ``declared.names.REPLACEMENT``.
"""

from __future__ import annotations

import functools
import json
import keyword
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, TypedDict

from nearfar.schema import Column, Option, Rows

if TYPE_CHECKING:
    from nearfar.strict import Json


class _Command(TypedDict):
    options: list[Json]
    tables: dict[str, Json]


class _Content(TypedDict):
    registries: dict[str, list[tuple[str, str]]]
    commands: dict[str, _Command]


@functools.cache
def _content() -> _Content:
    path = Path(__file__).with_suffix(".json")
    content: _Content = json.loads(path.read_text(encoding="utf-8"))
    return content


def module_name(command: str) -> str:
    """The attribute of this module with the declarations of a command."""
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
        return SimpleNamespace(**{key.upper(): _pairs(key) for key in _content()["registries"]})
    for command, declared in _content()["commands"].items():
        if module_name(command) == name:
            return _namespace(declared)
    raise AttributeError(f"module 'nearfar.declared' has no attribute {name!r}")


def _namespace(command: _Command) -> SimpleNamespace:
    options = tuple(map(_option, command["options"]))
    namespace = SimpleNamespace(OPTIONS=options, Options=dict)
    for name, table in command["tables"].items():
        rows, row = table_names(name)
        setattr(namespace, rows, _rows(table))
        setattr(namespace, row, dict)
    return namespace


def _pairs(registry: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, what) for name, what in _content()["registries"][registry])


def _option(option: Json) -> Option:
    values = dict(option)
    registry = values.pop("registry", "")
    choices = _pairs(registry) if registry else tuple(map(tuple, values.pop("choices", ())))
    return Option(**{**values, "choices": choices})


def _rows(table: Json) -> Rows:
    keys = tuple(tuple(key) if isinstance(key, list) else key for key in table["keys"])
    columns = tuple(Column(**column) for column in table["columns"])
    return Rows(columns=columns, keys=keys, metrics=table["metrics"], seed=table.get("seed"))
