"""Values as the text of table cells, by the unit that their column declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from nearfar import units
from nearfar.schema import Column, Rows

_NANOSECONDS: Final = {"ns": 1, "us": 1e3, "s": 1e9}


def cell(column: Column, value: object) -> str:
    """A value of a column, such as ``4 KiB``; ``-`` for None."""
    if value is None:
        return "-"
    if not isinstance(value, int | float):
        return units.clean(value)
    unit = column.unit.partition(" ")[0]  # "ns" for "ns per reference"
    if unit == "bytes":
        return units.size(value)
    if unit in _NANOSECONDS:
        return units.duration(value * _NANOSECONDS[unit])
    if column.unit == "per s":
        return units.count(round(value))
    # Some columns of shares declare no unit.
    if unit == "share" or column.name.endswith(("share", "gain")):
        return units.percent(value)
    return units.count(value) if isinstance(value, int) else units.digits(value)


def cells(
    declared: Rows,
    names: Sequence[str],
    rows: Iterable[Mapping[str, object]],
    show: Callable[[Column, object], str] = cell,
) -> list[list[str]]:
    """The cells of these columns in each row, formatted by ``show``."""
    columns = [declared.column(name) for name in names]
    return [[show(column, row[column.name]) for column in columns] for row in rows]


def signed_percent(share: float) -> str:
    """A change: ``+3.1 %``, ``-12 %``."""
    return f"{'-' if share < 0 else '+'}{units.percent(abs(share))}"


def optional(value: float | None, show: Callable[[float], str] = units.digits) -> str:
    """The value, formatted by ``show``; ``-`` for None."""
    return "-" if value is None else show(value)
