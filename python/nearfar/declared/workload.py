"""Options and rows of ``nearfar workload``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from typing import Final, TypedDict

from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar workload``, by name."""

    small: bool


OPTIONS: Final = (
    Option(
        "small",
        type="bool",
        what="Capture only the short part given by `small` in the workload file, as for tests.",
        default=False,
    ),
)
