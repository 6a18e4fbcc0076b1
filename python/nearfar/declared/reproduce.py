"""Options and rows of ``nearfar reproduce``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypedDict

from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar reproduce``, by name."""

    full: bool
    traces: str | Path | None
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
        what="A folder of captures; --full puts there what is missing.",
        shown="the small captures of the sources",
        metavar="FOLDER",
    ),
    Option("threads", type="int", what="Threads; 0 = one per core.", default=0, metavar="COUNT"),
)
