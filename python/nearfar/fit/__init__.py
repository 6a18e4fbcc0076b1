"""Fits from a table: measured points in a CSV file, or the rows of a paging study.

A person who can try only a few page sizes on a real machine writes what was measured::

    page_bytes,memory_fraction,tlb_miss_rate,fault_rate
    4K,0.5,0.021,0.00031
    16K,0.5,0.009,0.00018

and gets the models of :mod:`nearfar.models` for the sizes in between.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Unpack

from nearfar.declared import fit as declared
from nearfar.errors import NearfarError
from nearfar.models import QUANTITIES, Fit, fit
from nearfar.result import Result
from nearfar.schema import as_text, complete, default, takes
from nearfar.sizes import parse_bytes, parse_page_sizes
from nearfar.strict import read_file

#: Bytes of a table: some million points.
_LARGEST: Final = 64 << 20
#: Column that holds each quantity.
RATE_COLUMNS: Final = {"tlb": "tlb_miss_rate", "fault": "fault_rate"}
#: Every column a CSV file may have.
COLUMNS: Final = ("page_bytes", "tlb_miss_rate", "fault_rate", "memory_bytes", "memory_fraction")


class Fits(list[Fit], Result):
    """Fits of one table: of the TLB miss rate, then of the fault rate at each memory size.

    Attributes:
        sizes: page sizes in bytes to predict the rates of; None for those that were measured.
    """

    shown = "nearfar.report.fit:fit"
    chart = "nearfar.report.plots.fit:draw"
    sizes: Sequence[int] | None = None

    def points(self, one: Fit) -> list[tuple[int, float, float | None]]:
        """Page size, predicted rate, and the measured one where there is one."""
        if not one.coefficients:
            return []
        wanted = sorted(set(one.page_bytes)) if self.sizes is None else self.sizes
        measured = dict(zip(one.page_bytes, one.measured, strict=True))
        rates = one.predict(wanted).tolist()
        return [(size, rate, measured.get(size)) for size, rate in zip(wanted, rates, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        return {
            "fits": [
                one.to_dict()
                | {
                    "predictions": [
                        {"page_bytes": size, "rate": rate} for size, rate, _ in self.points(one)
                    ]
                }
                for one in self
            ]
        }

    @property
    def table(self) -> Any:
        """One predicted rate a row, as a ``pyarrow.Table``."""
        return declared.ROWS.table(self.rows)

    @property
    def rows(self) -> list[declared.Row]:
        """One predicted rate a row."""
        return [
            {
                "quantity": one.quantity,
                "memory_bytes": one.memory_bytes,
                "memory_fraction": one.memory_fraction,
                "page_bytes": size,
                "predicted": rate,
                "measured": measured,
                "verdict": one.verdict,
                "model": one.model,
            }
            for one in self
            for size, rate, measured in self.points(one)
        ]


@dataclass(frozen=True)
class _Memory:
    """Which memory size a rate belongs to; both None when it is not said."""

    bytes: int | None
    fraction: float | None


@takes(declared.OPTIONS)
def fit_csv(path: str | Path, **options: Unpack[declared.Options]) -> Fits:
    """Fit measured points.

    Args:
        path: a CSV file with a header: ``page_bytes`` (``4096`` or ``4K``), ``tlb_miss_rate``
            and/or ``fault_rate`` (fractions, 0 to 1; may be empty on some lines), and optionally
            ``memory_bytes`` or ``memory_fraction``, which group the faults.
        {options}

    Returns:
        The fit of the TLB miss rate, then one of the fault rate for each memory size.

    Raises:
        NearfarError: the file cannot be read, a column is missing or unknown, or a value is wrong;
            the message names the file, the line and the column.
    """
    asked = complete(declared.OPTIONS, options)
    quantity, predict = asked["quantity"], asked["predict"]
    sizes = parse_page_sizes(predict, "--predict") if isinstance(predict, str) else predict
    points = _read_csv(Path(path), quantity)
    fits = fit_rows(points, quantity, weighting=asked["weighting"], model=asked["model"])
    fits.sizes = sizes
    return fits


def fit_rows(
    rows: Iterable[Mapping[str, Any]],
    quantity: str | None = None,
    *,
    weighting: str = default(declared.OPTIONS, "weighting"),
    model: str | None = None,
) -> Fits:
    """Fit rows such as those of a paging study.

    Args:
        rows: mappings with ``page_bytes`` and ``tlb_miss_rate`` and/or ``fault_rate``, optionally
            ``memory_bytes`` and ``memory_fraction``. Other keys are not read: a study repeats its
            rates for every storage, and repeats of one page size, memory size and rate count once.
        quantity: ``tlb`` or ``fault``; by default both, where the rows have them.
        weighting, model: as :func:`nearfar.models.fit`.

    Returns:
        The fit of the TLB miss rate, then one of the fault rate for each memory size, smallest
        first.
    """
    wanted = list(QUANTITIES) if quantity is None else [quantity]
    for name in wanted:
        if name not in QUANTITIES:
            raise NearfarError(f"fit: unknown quantity `{name}`; one of {', '.join(QUANTITIES)}")
    # The TLB does not know how much memory there is: one group for all memory sizes.
    groups: dict[tuple[str, _Memory], dict[tuple[int, float], None]] = {}
    nowhere = _Memory(None, None)
    for row in rows:
        memory = _Memory(row.get("memory_bytes"), row.get("memory_fraction"))
        for name in wanted:
            rate = row.get(RATE_COLUMNS[name])
            if rate is not None:
                key = (name, nowhere if name == "tlb" else memory)
                groups.setdefault(key, {})[(int(row["page_bytes"]), float(rate))] = None
    if not groups:
        columns = " or ".join(RATE_COLUMNS[name] for name in wanted)
        raise NearfarError(f"fit: no values of {columns}; give a rate for several page sizes")

    def order(key: tuple[str, _Memory]) -> tuple[int, float, float]:
        name, memory = key
        return (
            wanted.index(name),
            math.inf if memory.bytes is None else memory.bytes,
            math.inf if memory.fraction is None else memory.fraction,
        )

    return Fits(
        fit(
            name,
            [size for size, _ in groups[name, memory]],
            [rate for _, rate in groups[name, memory]],
            memory_bytes=memory.bytes,
            memory_fraction=memory.fraction,
            weighting=weighting,
            model=model,
        )
        for name, memory in sorted(groups, key=order)
    )


def _read_csv(path: Path, quantity: str | None) -> list[dict[str, int | float | None]]:
    try:
        text = read_file(path, "a table of measured points", _LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NearfarError(
            f"{path} byte {error.start}: not UTF-8; save the table as plain CSV"
        ) from None
    try:
        lines = csv.reader(text.splitlines(), strict=True)
        header = [name.strip() for name in next(lines, [])]
        _check_header(path, header, quantity)
        rows = []
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            place = as_text(f"{path} line {lines.line_num}")
            if len(cells) != len(header):
                raise NearfarError(
                    f"{place}: {len(cells)} values for {len(header)} columns; one for each"
                )
            rows.append(
                {name: _value(place, name, cell) for name, cell in zip(header, cells, strict=True)}
            )
    except csv.Error as error:
        raise NearfarError(f"{path}: not CSV: {error}; quote or remove the odd character") from None
    if not rows:
        raise NearfarError(f"{path}: no points; add a line for each page size measured")
    return rows


def _check_header(path: Path, header: Sequence[str], quantity: str | None) -> None:
    import difflib

    for name in header:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, 1, 0.0)
            raise NearfarError(
                f"{path} line 1: unknown column `{name[:40]}`; did you mean `{near[0]}`? "
                f"(columns: {', '.join(COLUMNS)})"
            )
        if header.count(name) > 1:
            raise NearfarError(f"{path} line 1: column `{name}` appears twice; drop one")
    needed = [RATE_COLUMNS[quantity]] if quantity in RATE_COLUMNS else []
    for name in ["page_bytes", *needed]:
        if name not in header:
            raise NearfarError(f"{path} line 1: the column `{name}` is missing; add it")
    if not set(RATE_COLUMNS.values()) & set(header):
        either = " or ".join(f"`{name}`" for name in RATE_COLUMNS.values())
        raise NearfarError(f"{path} line 1: a column {either} is missing; add one")


def _value(place: str, column: str, cell: str) -> int | float | None:
    cell = cell.strip()
    if column in ("page_bytes", "memory_bytes"):
        if not cell and column == "memory_bytes":
            return None
        return parse_bytes(cell, f"{place} column {column}")
    if not cell:
        return None
    try:
        number = float(cell)
    except ValueError:
        number = math.nan
    if 0 <= number <= 1:
        return number
    hint = "; divide percentages by 100" if number > 1 else ""
    raise NearfarError(
        f"{place} column {column}: `{cell[:40]}` is not a fraction; write a number from 0 to 1"
        + hint
    )
