"""How far the gain that ``--view machine`` predicts may be from what is measured.

Shares of the run time with 4 KiB pages.
"""

from __future__ import annotations

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


def points(error: float) -> str:
    """The error of a share in words.

    >>> points(0.05)
    '5 points'
    """
    return units.percent(error).replace("%", "points")
