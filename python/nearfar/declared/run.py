"""Options and rows of ``nearfar run``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.declared import names
from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar run``, by name."""

    far: str
    policy: str
    far_size: str | int | None
    far_latency: str | int


OPTIONS: Final = (
    Option(
        "fast",
        type="str | int",
        what="Memory that each process keeps for itself: 512M.",
        required=True,
        metavar="SIZE",
    ),
    Option(
        "far",
        type="str",
        what="Where the rest lies: zstd, lz4, shm, or file:PATH for a new file of that name.",
        default="zstd",
        metavar="TIER",
        choices=names.FAR,
    ),
    Option(
        "policy",
        type="str",
        what="Policy that decides what lies where.",
        default="ssp",
        metavar="POLICY",
        choices=names.POLICY,
        open=False,
    ),
    Option(
        "far_size",
        type="str | int | None",
        what="Most memory in the far tier, shadows included, before compression.",
        shown="16 times --fast",
        metavar="SIZE",
    ),
    Option(
        "far_latency",
        type="str | int",
        what="Time that a page takes to or from the far tier at least.",
        default="0ns",
        metavar="TIME",
    ),
)
