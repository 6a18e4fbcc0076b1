"""Options and rows of ``nearfar fit``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.schema import Column, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar fit``, by name."""

    quantity: str | None
    predict: str | Sequence[int] | None
    weighting: str
    model: str | None


OPTIONS: Final = (
    Option(
        "quantity",
        type="str | None",
        what="What to fit.",
        shown="whatever the table has",
        metavar="NAME",
        choices=(("tlb", ""), ("fault", "")),
        open=False,
    ),
    Option(
        "predict",
        type="str | Sequence[int] | None",
        what="Page sizes to predict, such as 1K,2K,64K; `...` doubles.",
        shown="those measured",
        metavar="SIZES",
    ),
    Option(
        "weighting",
        type="str",
        what="Error that least squares minimizes.",
        default="absolute",
        metavar="NAME",
        choices=(
            ("absolute", "every point's error alike"),
            ("relative", "the error's share of the point's value"),
        ),
        open=False,
    ),
    Option(
        "model",
        type="str | None",
        what="The formula, of page size p.",
        shown="power of tlb rates, exponential-2 of fault rates",
        metavar="NAME",
        choices=(
            ("power", "a p^b"),
            ("exponential-2", "a e^(bp) + c e^(dp)"),
            ("exponential-1", "a e^(bp)"),
        ),
        open=False,
    ),
)


class Row(TypedDict):
    """A row of ``nearfar fit``."""

    quantity: str
    memory_bytes: int | None
    memory_fraction: float | None
    page_bytes: int
    predicted: float
    measured: float | None
    verdict: str
    model: str


ROWS: Final = Rows(
    columns=(
        Column("quantity", "string", False, "", "What was fitted: `tlb` or `fault`."),
        Column("memory_bytes", "int64", True, "bytes", "Memory size, where the table has it."),
        Column(
            "memory_fraction",
            "double",
            True,
            "of the footprint",
            "Memory size as a part of the footprint, where the table has it.",
        ),
        Column("page_bytes", "int64", False, "bytes", "Page size."),
        Column("predicted", "double", False, "per reference", "The rate by the model."),
        Column("measured", "double", True, "per reference", "The rate of the table, or null."),
        Column("verdict", "string", False, "", "How good the fit is: `good`, `fair` or `bad`."),
        Column("model", "string", False, "", "The formula that was fitted."),
    ),
    keys=("quantity", ("memory_fraction", "memory_bytes"), "page_bytes"),
    metrics={"predicted": "less", "measured": "less"},
)
