"""Columns of the usual types, for tables that are declared in Python.

Each function takes the name, the meaning and, by keyword, the other attributes of
:class:`nearfar.schema.Column`.
"""

from __future__ import annotations

from typing import TypedDict, Unpack

from nearfar.schema import Column


class Attributes(TypedDict, total=False):
    """Attributes of a column that have a default."""

    nullable: bool
    title: str
    python: str


def _column(name: str, arrow: str, unit: str, what: str, more: Attributes) -> Column:
    nullable = more.get("nullable", False)
    return Column(name, arrow, nullable, unit, what, more.get("title", ""), more.get("python", ""))


def text(name: str, what: str, **more: Unpack[Attributes]) -> Column:
    """Text. ``python``: the type in Python of values that only tables hold as text."""
    return _column(name, "string", "", what, more)


def flag(name: str, what: str, **more: Unpack[Attributes]) -> Column:
    """True or false."""
    return _column(name, "bool", "", what, more)


def integer(name: str, what: str, unit: str = "", **more: Unpack[Attributes]) -> Column:
    """A whole number."""
    return _column(name, "int64", unit, what, more)


def byte_size(name: str, what: str, **more: Unpack[Attributes]) -> Column:
    """A whole number of bytes."""
    return integer(name, what, "bytes", **more)


def number(name: str, what: str, unit: str = "", **more: Unpack[Attributes]) -> Column:
    """A floating-point number."""
    return _column(name, "double", unit, what, more)


def share(name: str, what: str, **more: Unpack[Attributes]) -> Column:
    """A share: 0.05 is 5 %."""
    return number(name, what, "share", **more)
