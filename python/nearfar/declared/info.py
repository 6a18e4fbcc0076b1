"""Options and rows of ``nearfar info``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import MachineLike, Option


class Options(TypedDict, total=False):
    """Options of ``nearfar info``, by name."""

    reuse: bool
    verify: bool
    filter: str
    machine: MachineLike


OPTIONS: Final = (
    Option(
        "reuse",
        type="bool",
        what="Work out the distances of reuse, the most expensive part.",
        default=True,
    ),
    Option(
        "verify",
        type="bool",
        what="Read every file whole first and compare checksums and counts with trace.json.",
        default=False,
    ),
    Option(
        "filter",
        type="str",
        what="References to read: all, or what the machine's caches let through.",
        default="none",
        metavar="NAME",
        choices=names.FILTER,
        open=False,
    ),
    Option(
        "machine",
        type="MachineLike",
        what="Machine of the filter, by name or file.",
        default="desktop-nvm",
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
)
