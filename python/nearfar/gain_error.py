"""How far the gain that ``--view machine`` predicts may be from what is measured.

Shares of the run time with 4 KiB pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nearfar import units

#: A predicted gain is taken to be off by so much, or by this part of it, whichever is larger. More
#: than half of the cells of docs/validation.md are that near; the others gain more than predicted.
LEAST: Final = 0.05
PART: Final = 1 / 3


def gain_error(gain: float) -> float:
    """What a predicted gain may be wrong by.

    >>> gain_error(0.03)
    0.05
    """
    return max(LEAST, PART * abs(gain))


def worthwhile(gains: Mapping[int, float], least: float = 0.0) -> int | None:
    """The page size to take by what sizes gain; None where none gains more than its error.

    Of sizes that gain alike it is the smallest, which holds less memory that nobody uses: what the
    best gains more than another is a gain like any other, and off by as much.

    >>> worthwhile({65536: 0.27, 131072: 0.29, 262144: 0.31})
    65536

    Args:
        gains: by page size.
        least: a gain below it is none.
    """
    worth = {s: gain for s, gain in gains.items() if gain > gain_error(gain) and gain >= least}
    most = max(worth.values(), default=0.0)
    alike = [size for size, gain in worth.items() if most - gain <= gain_error(most - gain)]
    return min(alike, default=None)


def points(error: float) -> str:
    """The error of a share in words.

    >>> points(0.05)
    '5 points'
    """
    return units.percent(error).replace("%", "points")
