"""Options and columns of ``reproduce``.

``make declared`` generates ``nearfar.declared.reproduce`` from them.
"""

from __future__ import annotations

from typing import Final

from nearfar.schema import Column, Option, Rows

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
            Column("paper", "string", False, "", "The paper's number, such as `000`."),
            Column("item", "string", False, "", "Figure, table or section, and the statement."),
            Column("published", "string", False, "", "The printed number, or `stated` if the "
                   "paper gives none.",
                   python="float | str"),
            Column("ours", "double", True, "", "Our number, or null; a statement in words is "
                   "measured as a share of cases, a count or a ratio."),
            Column("unit", "string", False, "", "Unit of `published` and `ours`."),
            Column("tolerance", "string", False, "", "Allowed difference (`equal`, `within 0.1`, "
                   "`within 10%`, `factor 2`, `+- 0.05`), or limits of `ours` alone (`>= 3`, "
                   "`3 to 9`, `above 1`)."),
            Column("holds", "bool", True, "", "Whether `ours` is within `tolerance`; null, and not "
                   "counted, for an input."),
            Column("note", "string", False, "", "Details; `why:` and the reason if it does "
                   "not hold."),
            Column("input", "string", False, "", "The input that `ours` only repeats: a key of a "
                                                 "machine file "
                   "(`MACHINE: KEY`), a choice of the study, or its `definition`; empty for a "
                   "result."),
        ),
        keys=("paper", "item"),
        metrics={"ours": "more"},
    ),
    "sensitivity": Rows(
        columns=(
            Column("setting", "string", False, "", "The changed choice of what the papers leave "
                                                   "open."),
            Column("why", "string", False, "", "What `setting` stands for.", "stands for"),
            Column("holds", "int64", False, "", "Rows that hold with `setting`.", "hold"),
            Column("rows", "int64", False, "", "Rows that count: all but inputs."),
            Column("more", "string", False, "", "Items that hold with `setting`, but not as "
                                                "chosen.",
                   python="list[str]"),
            Column("fewer", "string", False, "", "Items that hold as chosen, but not with "
                                                 "`setting`.",
                   python="list[str]"),
        ),
        keys=("setting",),
        metrics={"holds": "more"},
    ),
}  # fmt: skip
