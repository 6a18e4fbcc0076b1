"""Options and rows of ``nearfar numa plan``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import MachineLike, Option


class Options(TypedDict, total=False):
    """Options of ``nearfar numa plan``, by name."""

    working_set: str | int | None
    bandwidth: float
    machine: MachineLike
    pattern: str
    writes: str | float
    from_: int | None
    threads: int


OPTIONS: Final = (
    Option(
        "capacity",
        type="str | int",
        what="Bytes that must fit, such as 500G.",
        required=True,
        metavar="SIZE",
    ),
    Option(
        "working_set",
        type="str | int | None",
        what="Bytes in use at a time, touched first.",
        shown="all",
        metavar="SIZE",
    ),
    Option(
        "bandwidth",
        type="float",
        what="GB/s that are needed over all threads.",
        default=0.0,
        metavar="NUMBER",
    ),
    Option(
        "machine",
        type="MachineLike",
        what="Machine name or file.",
        default="optane-4node",
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
    Option(
        "pattern",
        type="str",
        what="Order of accesses.",
        default="random",
        metavar="NAME",
        choices=(("random", "anywhere in the working set"), ("sequential", "round after round")),
        open=False,
    ),
    Option(
        "writes",
        type="str | float",
        what="Share of accesses that store.",
        default=0.0,
        metavar="SHARE",
    ),
    Option(
        "from_",
        type="int | None",
        what="Node whose cores work.",
        shown="the first with cores",
        metavar="COUNT",
    ),
    Option("threads", type="int", what="Cores at work.", default=1, metavar="COUNT"),
)
