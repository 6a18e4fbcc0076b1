"""Options and rows of ``nearfar export``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import MachineLike, Option


class Options(TypedDict, total=False):
    """Options of ``nearfar export``, by name."""

    kinds: str | Sequence[str] | None
    max_refs: int | None
    page_bytes: str | int | None
    filter: str
    machine: MachineLike


OPTIONS: Final = (
    Option(
        "format",
        type="str",
        what="Format of the file.",
        required=True,
        metavar="NAME",
        choices=names.EXPORT_FORMAT,
        open=False,
    ),
    Option(
        "kinds",
        type="str | Sequence[str] | None",
        what="Kinds of references to export.",
        shown="all",
        metavar="KINDS",
        choices=names.KIND,
        open=False,
    ),
    Option(
        "max_refs",
        type="int | None",
        what="Stop after this many references.",
        shown="all",
        metavar="COUNT",
    ),
    Option(
        "page_bytes",
        type="str | int | None",
        what="Bytes of a page, a power of two (oracle-general).",
        shown="4096",
        metavar="SIZE",
    ),
    Option(
        "filter",
        type="str",
        what="References to read: all (`none`), or those that miss the machine's caches.",
        default="none",
        metavar="NAME",
        choices=names.FILTER,
        open=False,
    ),
    Option(
        "machine",
        type="MachineLike",
        what="Machine whose caches filter, by name or file.",
        default="nvme",
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
)
