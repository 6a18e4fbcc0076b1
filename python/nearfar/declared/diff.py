"""Options and rows of ``nearfar diff``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.schema import Column, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar diff``, by name."""

    metric: str | Sequence[str] | None


OPTIONS: Final = (
    Option(
        "metric",
        type="str | Sequence[str] | None",
        what="Metrics of the study, separated by commas.",
        shown="its first",
        metavar="NAMES",
    ),
)


class Row(TypedDict):
    """A row of ``nearfar diff``."""

    metric: str
    pairs: int
    a: float
    b: float
    difference: float
    relative: float | None
    low: float | None
    high: float | None
    verdict: str


ROWS: Final = Rows(
    columns=(
        Column("metric", "string", False, "", "The number compared."),
        Column("pairs", "int64", False, "", "Seeds that both have."),
        Column("a", "double", False, "", "Mean of the first run.", title="A"),
        Column("b", "double", False, "", "Mean of the second run.", title="B"),
        Column("difference", "double", False, "", "Mean of b - a."),
        Column(
            "relative",
            "double",
            True,
            "of a",
            "The same as a share; null where a is 0.",
            title="change",
        ),
        Column(
            "low",
            "double",
            True,
            "of a",
            "Lower end of the 95 % interval of `relative` over seeds; null for one seed.",
            title="95 % interval",
        ),
        Column("high", "double", True, "of a", "Its upper end."),
        Column("verdict", "string", False, "", "`better`, `worse` or `unchanged`."),
    ),
    keys=("metric",),
    metrics={"relative": "less"},
)
