"""Options and rows of ``nearfar generate``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar generate``, by name."""

    page_bytes: str | int
    seed: int
    write_ratio: float
    threads: int
    alpha: float | None
    stride: str | int | None
    mix: str | None
    phase: int | None


OPTIONS: Final = (
    Option(
        "name",
        type="str",
        what="Where references go.",
        required=True,
        metavar="NAME",
        choices=names.GENERATOR,
        open=False,
        argument=True,
    ),
    Option("refs", type="int", what="Total number of references.", required=True, metavar="COUNT"),
    Option(
        "pages", type="int", what="Number of pages that they touch.", required=True, metavar="COUNT"
    ),
    Option(
        "page_bytes",
        type="str | int",
        what="Bytes in a page, a power of two from 8 to 2^30.",
        default=4096,
        metavar="SIZE",
    ),
    Option("seed", type="int", what="Seed of the random numbers.", default=0, metavar="COUNT"),
    Option(
        "write_ratio", type="float", what="Share of stores, 0 to 1.", default=0.0, metavar="NUMBER"
    ),
    Option(
        "threads",
        type="int",
        what="Threads that take turns, one reference each.",
        default=1,
        metavar="COUNT",
    ),
    Option(
        "alpha",
        type="float | None",
        what="Skew, 0 (even) to 100 (zipf, scrambled-zipf).",
        shown="1",
        metavar="NUMBER",
    ),
    Option(
        "stride",
        type="str | int | None",
        what="Bytes from one reference to the next (strided).",
        shown="a page",
        metavar="SIZE",
    ),
    Option(
        "mix",
        type="str | None",
        what="Generators with their weights, such as zipf:0.7,sequential:0.3; their options count too (mix).",
        metavar="TEXT",
    ),
    Option(
        "phase",
        type="int | None",
        what="References in which each part runs once, one after the other (mix).",
        shown="every reference drawn by weight",
        metavar="COUNT",
    ),
)
