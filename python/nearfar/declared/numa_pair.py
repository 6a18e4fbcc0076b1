"""Options and rows of ``nearfar numa pair``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Column, MachineLike, Option, Rows


class Options(TypedDict, total=False):
    """Options of ``nearfar numa pair``, by name."""

    machine: MachineLike
    overlap: str | Sequence[str | float]
    cache: str | int | None
    from_: int | None
    seed: int


OPTIONS: Final = (
    Option(
        "machine",
        type="MachineLike",
        what="Machine name or file.",
        default="optane-4node",
        metavar="MACHINE",
        choices=names.MACHINE,
    ),
    Option(
        "overlap",
        type="str | Sequence[str | float]",
        what="Shares of the smaller one's pages that share the other's cache lines.",
        default="0,0.25,0.5,0.75,1",
        metavar="SHARE",
    ),
    Option(
        "cache",
        type="str | int | None",
        what="DRAM in front of the node.",
        shown="the machine's",
        metavar="SIZE",
    ),
    Option(
        "from_",
        type="int | None",
        what="Node whose cores run the work.",
        shown="the first with cores",
        metavar="COUNT",
    ),
    Option(
        "seed",
        type="int",
        what="Seed of random loads and of the shuffle.",
        default=1,
        metavar="COUNT",
    ),
)


class Row(TypedDict):
    """A row of ``nearfar numa pair``."""

    shuffled: bool
    overlap: float | None
    alone_hit_rate_a: float
    alone_hit_rate_b: float
    together_hit_rate_a: float
    together_hit_rate_b: float
    alone_ns_a: float
    alone_ns_b: float
    together_ns_a: float
    together_ns_b: float
    slowdown_a: float
    slowdown_b: float


ROWS: Final = Rows(
    columns=(
        Column("shuffled", "bool", False, "", "Whether pages lie at random."),
        Column(
            "overlap",
            "double",
            True,
            "",
            "Share of the smaller guest's pages that share cache lines with the other's; null when shuffled.",
        ),
        Column("alone_hit_rate_a", "double", False, "", "Hit rate alone, first guest."),
        Column("alone_hit_rate_b", "double", False, "", "Hit rate alone, second guest."),
        Column("together_hit_rate_a", "double", False, "", "Hit rate together, first guest."),
        Column("together_hit_rate_b", "double", False, "", "Hit rate together, second guest."),
        Column("alone_ns_a", "double", False, "ns", "Time of an access alone, first guest."),
        Column("alone_ns_b", "double", False, "ns", "Time of an access alone, second guest."),
        Column("together_ns_a", "double", False, "ns", "Time of an access together, first guest."),
        Column("together_ns_b", "double", False, "ns", "Time of an access together, second guest."),
        Column("slowdown_a", "double", False, "", "Together over alone, first guest."),
        Column("slowdown_b", "double", False, "", "Together over alone, second guest."),
    ),
    keys=("shuffled", "overlap"),
    metrics={
        "slowdown_a": "less",
        "slowdown_b": "less",
        "together_ns_a": "less",
        "together_ns_b": "less",
        "together_hit_rate_a": "more",
        "together_hit_rate_b": "more",
    },
    seed="seed",
)
