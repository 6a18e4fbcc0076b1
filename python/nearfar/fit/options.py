"""What ``fit`` takes and returns.

``make declared`` writes it as types and data, ``nearfar.declared.fit``.
"""

from __future__ import annotations

from typing import Final

from nearfar.models import MODELS, QUANTITIES, WEIGHTINGS
from nearfar.schema import Column, Option, Rows

OPTIONS: Final = (
    Option(
        "quantity",
        "str | None",
        "What to fit.",
        shown="whatever the table has",
        metavar="NAME",
        choices=tuple((name, "") for name in QUANTITIES),
        open=False,
    ),
    Option(
        "predict",
        "str | Sequence[int] | None",
        "Page sizes to predict, such as 1K,2K,64K; `...` doubles.",
        shown="those measured",
        metavar="SIZES",
    ),
    Option(
        "weighting",
        "str",
        "Error that least squares minimizes.",
        default="absolute",
        metavar="NAME",
        choices=tuple(WEIGHTINGS.items()),
        open=False,
    ),
    Option(
        "model",
        "str | None",
        "The formula, of page size p.",
        shown=", ".join(f"{model} of {name} rates" for name, model in QUANTITIES.items()),
        metavar="NAME",
        choices=tuple((model.name, model.formula) for model in MODELS.values()),
        open=False,
    ),
)

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

DECISION: Final = Rows(
    columns=(
        Column("memory_bytes", "int64", True, "bytes", "Memory size, where the table has it."),
        Column(
            "memory_fraction",
            "double",
            True,
            "of the footprint",
            "Memory size as a part of the footprint, where the table has it.",
        ),
        Column("storage", "string", False, "", "Storage of the machine."),
        Column("page_bytes", "int64", False, "bytes", "Page size: measured, or between such."),
        Column("time_ns", "double", False, "ns", "Time of a reference."),
        Column("gain", "double", True, "", "Share of the time at 4 KiB that it saves, or null."),
        Column(
            "error",
            "double",
            True,
            "",
            "Error of the time: 0 if measured, else the largest at a measured size that is held "
            "out; null with two sizes.",
        ),
        Column("measured", "bool", False, "", "Whether its rates were measured."),
        Column("chosen", "bool", False, "", "Whether it is the page size to use."),
    ),
    keys=(("memory_fraction", "memory_bytes"), "storage", "page_bytes"),
    metrics={"time_ns": "less"},
)

TABLES: Final = {"rows": ROWS, "decision": DECISION}
