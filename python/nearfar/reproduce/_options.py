"""Options and columns of ``reproduce``.

``make declared`` generates ``nearfar.declared.reproduce`` from them.
"""

from __future__ import annotations

from typing import Final

from nearfar.columns import flag, integer, number, text
from nearfar.schema import Option, Rows

OPTIONS: Final = (
    Option(
        "full",
        "bool",
        "Capture programs (tiering: simulate) at full size; takes long.",
        default=False,
    ),
    Option(
        "traces",
        "str | Path | None",
        "Folder of captures; --full adds those that are missing.",
        shown="the reduced traces of whole runs that come with the sources",
        metavar="FOLDER",
    ),
    Option(
        "vm",
        "bool",
        "Read captures of whole virtual machines, NAME-vm.trace; needs --traces or --full.",
        default=False,
    ),
    Option(
        "live",
        "bool",
        "Also run the SSP (003) benchmark under `nearfar run`; takes some minutes.",
        default=False,
    ),
    Option("threads", "int", "Threads; 0 = one per core.", default=0, metavar="COUNT"),
)

TABLES: Final = {
    "rows": Rows(
        columns=(
            text("paper", "The paper's number, such as `000`."),
            text("item", "Figure, table or section, and the statement."),
            text(
                "published",
                "The printed number, or `stated` if the paper gives none.",
                python="float | str",
            ),
            number(
                "ours",
                "Our number, or null; a statement in words is measured as a share of cases, a "
                "count or a ratio.",
                nullable=True,
            ),
            text("unit", "Unit of `published` and `ours`."),
            text(
                "tolerance",
                "Allowed difference (`equal`, `within 0.1`, `within 10%`, `factor 2`), or "
                "limits of `ours` alone (`>= 3`, `3 to 9`, `above 1`, `below 1`).",
            ),
            flag(
                "holds",
                "Whether `ours` is within `tolerance`; null, and not counted, for an input.",
                nullable=True,
            ),
            text("note", "Details; `why:` and the reason if it does not hold."),
            text(
                "input",
                "The input that `ours` only repeats: a key of a machine file (`MACHINE: KEY`), a "
                "choice of the study, or its `definition`; empty for a result.",
            ),
        ),
        keys=("paper", "item"),
        metrics={"ours": "more"},
    ),
    "sensitivity": Rows(
        columns=(
            text("setting", "The changed choice of what the papers leave open."),
            text("why", "What `setting` stands for.", title="stands for"),
            integer("holds", "Rows that hold with `setting`.", title="hold"),
            integer("rows", "Rows that count: all but inputs."),
            text("more", "Items that hold with `setting`, but not as chosen.", python="list[str]"),
            text("fewer", "Items that hold as chosen, but not with `setting`.", python="list[str]"),
        ),
        keys=("setting",),
        metrics={"holds": "more"},
    ),
}
