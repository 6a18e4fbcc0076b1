"""Options and rows of ``nearfar explain``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar explain``, by name."""

    memory: str | None
    storage: str | None


OPTIONS: Final = (
    Option("page", type="str | int", what="Page size of the row.", required=True, metavar="SIZE"),
    Option(
        "memory",
        type="str | None",
        what="Memory size of the row, as the run was asked for it.",
        shown="the middle one",
        metavar="SIZE",
    ),
    Option(
        "storage",
        type="str | None",
        what="Storage of the row.",
        shown="the run's first",
        metavar="TEXT",
    ),
)
