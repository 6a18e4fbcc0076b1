"""Options and rows of ``nearfar import``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar import``, by name."""

    format: str | None
    skip_bad: int
    max_refs: int | None
    object_bytes: str | int | None


OPTIONS: Final = (
    Option(
        "format",
        type="str | None",
        what="Format of the file.",
        shown="recognised by the content",
        metavar="NAME",
        choices=names.IMPORT_FORMAT,
        open=False,
    ),
    Option(
        "skip_bad",
        type="int",
        what="Bad records to skip; trace.json counts them.",
        default=0,
        metavar="COUNT",
    ),
    Option(
        "max_refs",
        type="int | None",
        what="Stop after this many references.",
        shown="all",
        metavar="COUNT",
    ),
    Option(
        "object_bytes",
        type="str | int | None",
        what="Bytes that an object id stands for (oracle-general).",
        shown="4096",
        metavar="SIZE",
    ),
)
