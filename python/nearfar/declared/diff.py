"""Options and rows of ``nearfar diff``. Made by ``make declared``; not to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypedDict

from nearfar.schema import Option


class Options(TypedDict, total=False):
    """Options of ``nearfar diff``, by name."""

    metric: str | Sequence[str] | None


OPTIONS: Final = (
    Option(
        "metric",
        type="str | Sequence[str] | None",
        what="Metrics of the study, separated by commas.",
        shown="its first",
        metavar="NAMES",
    ),
)
