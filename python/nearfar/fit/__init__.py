"""Fits from a table: measured points in a CSV file, or the rows of a paging study.

A table of a few page sizes that were measured on a real machine::

    page_bytes,memory_fraction,tlb_miss_rate,fault_rate
    4K,0.5,0.021,0.00031
    16K,0.5,0.009,0.00018

gives the models of :mod:`nearfar.models` for the sizes between.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack, cast

from nearfar.declared import fit as declared
from nearfar.errors import NearfarError
from nearfar.models import QUANTITIES, Fit, fit
from nearfar.result import Result
from nearfar.schema import as_text, complete, default, takes
from nearfar.sizes import parse_bytes, parse_page_sizes
from nearfar.strict import Json, read_file

if TYPE_CHECKING:
    import pyarrow

#: Maximum bytes of a table: about a million points.
_MAX_TABLE: Final = 64 << 20
#: The column of each quantity.
RATE_COLUMNS: Final = {"tlb": "tlb_miss_rate", "fault": "fault_rate"}
#: Columns of a CSV file.
COLUMNS: Final = ("page_bytes", "tlb_miss_rate", "fault_rate", "memory_bytes", "memory_fraction")


class Fits(list[Fit], Result):
    """Fits of one table: of the TLB miss rate, then of the fault rate at each memory size.

    Attributes:
        sizes: page sizes in bytes to predict rates for; None: the measured ones.
    """

    shown = "nearfar.report.fit:fit"
    chart = "nearfar.report.plots.fit:draw"
    sizes: Sequence[int] | None = None

    def points(self, one: Fit) -> list[tuple[int, float, float | None]]:
        """Page size, predicted rate, and measured rate or None."""
        if not one.coefficients:
            return []
        sizes = sorted(set(one.page_bytes)) if self.sizes is None else self.sizes
        measured = dict(zip(one.page_bytes, one.measured, strict=True))
        rates = one.predict(sizes).tolist()
        return [(size, rate, measured.get(size)) for size, rate in zip(sizes, rates, strict=True)]

    def to_dict(self) -> Mapping[str, object]:
        """The fits as plain values, as ``--format json`` prints them."""
        predictions = [
            [{"page_bytes": size, "rate": rate} for size, rate, _ in self.points(one)]
            for one in self
        ]
        pairs = zip(self, predictions, strict=True)
        return {"fits": [{**one.to_dict(), "predictions": rates} for one, rates in pairs]}

    @property
    def table(self) -> pyarrow.Table:
        """The predicted rates as a ``pyarrow.Table``."""
        return declared.ROWS.table(self.rows)

    @property
    def rows(self) -> list[declared.Row]:
        """The predicted rates."""
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


@takes(declared.OPTIONS)
def fit_csv(path: str | Path, **options: Unpack[declared.Options]) -> Fits:
    """Fit measured points.

    Args:
        path: a CSV file with a header: ``page_bytes`` (``4096`` or ``4K``), ``tlb_miss_rate``
            and/or ``fault_rate`` (fractions, 0 to 1, or empty), and optionally
            ``memory_bytes`` or ``memory_fraction``, which group the faults.
        {options}

    Returns:
        The fit of the TLB miss rate, then one of the fault rate for each memory size.

    Raises:
        NearfarError: the file cannot be read, a column is missing or unknown, or a value is wrong;
            the message names the file, the line and the column.
    """
    values = complete(declared.OPTIONS, options)
    quantity, predict = values["quantity"], values["predict"]
    sizes = parse_page_sizes(predict, "--predict") if isinstance(predict, str) else predict
    points = _read_csv(Path(path), quantity)
    fits = fit_rows(points, quantity, weighting=values["weighting"], model=values["model"])
    fits.sizes = sizes
    return fits


def fit_rows(
    rows: Iterable[Mapping[str, object]],
    quantity: str | None = None,
    *,
    weighting: str = default(declared.OPTIONS, "weighting"),
    model: str | None = None,
) -> Fits:
    """Fit rows such as those of a paging study.

    Args:
        rows: mappings with ``page_bytes`` and ``tlb_miss_rate`` and/or ``fault_rate``, optionally
            ``memory_bytes`` and ``memory_fraction``. Equal points count once: a study repeats its
            rates for every storage.
        quantity: ``tlb`` or ``fault``; by default both, if the rows have them.
        weighting, model: as :func:`nearfar.models.fit`.

    Returns:
        The fit of the TLB miss rate, then one of the fault rate for each memory size, smallest
        first.
    """
    wanted = list(QUANTITIES) if quantity is None else [quantity]
    for name in wanted:
        if name not in QUANTITIES:
            raise NearfarError(f"fit: unknown quantity `{name}`; one of {', '.join(QUANTITIES)}")
    groups: dict[tuple[str, int | None, float | None], dict[tuple[int, float], None]] = {}
    for row in cast("Iterable[Json]", rows):
        memory = (row.get("memory_bytes"), row.get("memory_fraction"))
        for name in wanted:
            rate = row.get(RATE_COLUMNS[name])
            if rate is not None:
                # TLB misses do not depend on memory: one group for all memory sizes.
                key = (name, None, None) if name == "tlb" else (name, *memory)
                groups.setdefault(key, {})[(int(row["page_bytes"]), float(rate))] = None
    if not groups:
        columns = " or ".join(RATE_COLUMNS[name] for name in wanted)
        raise NearfarError(f"fit: no values of {columns}; give a rate for several page sizes")

    def order(key: tuple[str, int | None, float | None]) -> tuple[float, ...]:
        name, *memory = key
        return (wanted.index(name), *(math.inf if size is None else size for size in memory))

    return Fits(
        fit(
            name,
            [page for page, _ in groups[name, size, fraction]],
            [rate for _, rate in groups[name, size, fraction]],
            memory_bytes=size,
            memory_fraction=fraction,
            weighting=weighting,
            model=model,
        )
        for name, size, fraction in sorted(groups, key=order)
    )


def _read_csv(path: Path, quantity: str | None) -> list[dict[str, int | float | None]]:
    try:
        text = read_file(path, "a table of measured points", _MAX_TABLE).decode("utf-8-sig")
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
