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
        "Rate to fit: TLB misses or page faults.",
        shown="those in the table",
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
        "Formula of the rate by page size p.",
        shown=", ".join(f"{model} for {name} rates" for name, model in QUANTITIES.items()),
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
        text("quantity", "Fitted rate: `tlb` (misses) or `fault` (page faults)."),
        *_MEMORY,
        byte_size("page_bytes", "Page size."),
        number("predicted", "Rate that the model predicts.", "per reference"),
        number(
            "measured",
            "Rate in the table; null if the table lacks the page size.",
            "per reference",
            nullable=True,
        ),
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
        number("time_ns", "Predicted mean time of a reference.", "ns"),
        number(
            "gain",
            "Share of the time with 4 KiB pages that the page size saves; null "
            "without a time for 4 KiB.",
            nullable=True,
        ),
        number(
            "error",
            "Relative error of `time_ns`: 0 if measured, else the largest at a measured size, "
            "except the first and last, that is predicted from the others; null with two sizes.",
            nullable=True,
        ),
        flag("measured", "Whether the rates at this page size were measured."),
        flag("chosen", "Whether this is the page size to use."),
    ),
    keys=(("memory_fraction", "memory_bytes"), "storage", "page_bytes"),
    metrics={"time_ns": "less"},
)

TABLES: Final = {"rows": ROWS, "decision": DECISION}
