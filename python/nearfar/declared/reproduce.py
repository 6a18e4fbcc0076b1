"""Options and rows of ``nearfar reproduce``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from nearfar.schema import Column, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar reproduce``, by name."""

    full: bool
    traces: str | Path | None
    live: bool
    threads: int


OPTIONS: Final = (
    Option(
        "full",
        type="bool",
        what="Capture or simulate at full size first; takes long.",
        default=False,
    ),
    Option(
        "traces",
        type="str | Path | None",
        what="Folder of captures; --full adds those that are missing.",
        shown="the views of whole runs that come with the sources",
        metavar="FOLDER",
    ),
    Option(
        "live",
        type="bool",
        what="Also run the paper's benchmark under nearfar run on this kernel; takes some minutes.",
        default=False,
    ),
    Option("threads", type="int", what="Threads; 0 = one per core.", default=0, metavar="COUNT"),
)


class Row(TypedDict):
    """A row of ``nearfar reproduce``."""

    paper: str
    item: str
    published: float | str
    ours: float | None
    unit: str
    tolerance: str
    holds: bool | None
    note: str
    input: str


ROWS: Final = Rows(
    columns=(
        Column("paper", "string", False, "", "The paper's number, such as `000`."),
        Column("item", "string", False, "", "Figure, table or section, and the statement."),
        Column(
            "published",
            "string",
            False,
            "",
            "The printed number, or `stated` if the paper gives none.",
        ),
        Column(
            "ours",
            "double",
            True,
            "",
            "Our number, or null; a statement in words is measured as a share of cases, a count or a ratio.",
        ),
        Column("unit", "string", False, "", "Unit of both."),
        Column(
            "tolerance",
            "string",
            False,
            "",
            "`equal`, `within 0.1`, `within 10%`, `factor 2`; of our number alone `>= 3`, `<= 3`, `3 to 9`.",
        ),
        Column(
            "holds",
            "bool",
            True,
            "",
            "Whether ours is within the tolerance; null, and not counted, for an input.",
        ),
        Column("note", "string", False, "", "What was seen; `why:` for a row that does not hold."),
        Column(
            "input",
            "string",
            False,
            "",
            "What ours only repeats: a key of a machine file (`MACHINE: KEY`), a choice of the study, or its `definition`; empty for a result.",
        ),
    ),
    keys=("paper", "item"),
    metrics={"ours": "more"},
)


class SensitivityRow(TypedDict):
    """A row of the table ``sensitivity`` of ``nearfar reproduce``."""

    setting: str
    why: str
    holds: int
    rows: int
    more: list[str]
    fewer: list[str]


SENSITIVITY_ROWS: Final = Rows(
    columns=(
        Column("setting", "string", False, "", "What is chosen otherwise."),
        Column("why", "string", False, "", "What the other choice stands for.", title="stands for"),
        Column("holds", "int64", False, "", "Rows that then hold.", title="hold"),
        Column("rows", "int64", False, "", "Rows in all."),
        Column("more", "string", False, "", "Items that hold only then."),
        Column("fewer", "string", False, "", "Items that no longer hold then."),
    ),
    keys=("setting",),
    metrics={"holds": "more"},
)
