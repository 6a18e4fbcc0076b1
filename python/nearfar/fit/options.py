"""Options and columns of ``fit``.

``make declared`` generates ``nearfar.declared.fit`` from them.
"""

from __future__ import annotations

from typing import Final

from nearfar.columns import byte_size, flag, number, text
from nearfar.models import MODELS, QUANTITIES, WEIGHTINGS
from nearfar.schema import Option, Rows

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
        "Page sizes to predict, such as 8K,32K, or 4K,...,64K for powers of two.",
        shown="those measured",
        metavar="SIZES",
    ),
    Option(
        "weighting",
        "str",
        "Error that the fit minimizes.",
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

_MEMORY: Final = (
    byte_size("memory_bytes", "Memory size, where the table has it.", nullable=True),
    number(
        "memory_fraction",
        "Memory size as a part of the footprint, where the table has it.",
        "of the footprint",
        nullable=True,
    ),
)

ROWS: Final = Rows(
    columns=(
        text("quantity", "What was fitted: `tlb` or `fault`."),
        *_MEMORY,
        byte_size("page_bytes", "Page size."),
        number("predicted", "The rate by the model.", "per reference"),
        number("measured", "The rate of the table, or null.", "per reference", nullable=True),
        text("verdict", "How good the fit is: `good`, `fair` or `bad`."),
        text("model", "The formula that was fitted."),
    ),
    keys=("quantity", ("memory_fraction", "memory_bytes"), "page_bytes"),
    metrics={"predicted": "less", "measured": "less"},
)

DECISION: Final = Rows(
    columns=(
        *_MEMORY,
        text("storage", "Storage of the machine."),
        byte_size("page_bytes", "A measured page size, or one between two measured ones."),
        number("time_ns", "Time of a reference.", "ns"),
        number("gain", "Share of the time at 4 KiB that it saves, or null.", nullable=True),
        number(
            "error",
            "Error of the time: 0 if measured, else the largest at an inner measured size that the "
            "fit leaves out; null with two sizes.",
            nullable=True,
        ),
        flag("measured", "Whether its rates were measured."),
        flag("chosen", "Whether it is the page size to use."),
    ),
    keys=(("memory_fraction", "memory_bytes"), "storage", "page_bytes"),
    metrics={"time_ns": "less"},
)

TABLES: Final = {"rows": ROWS, "decision": DECISION}
