"""The error of the gain that ``paging --view machine`` predicts, against measurements.

Gains and errors are shares of the run time with 4 KiB pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from nearfar import units

Key = TypeVar("Key")

#: The error of a gain: MIN_ERROR, or RELATIVE_ERROR times the gain if that is larger. More than
#: half of the measured gains (docs/validation.md) are within it.
MIN_ERROR: Final = 0.05
RELATIVE_ERROR: Final = 1 / 3


def gain_error(gain: float) -> float:
    """The error of a predicted gain.

    >>> gain_error(0.03)
    0.05
    """
    return max(MIN_ERROR, RELATIVE_ERROR * abs(gain))


def equal_best(gains: Mapping[Key, float], min_gain: float = 0.0) -> list[Key]:
    """The keys of gains that differ from the best by no more than the error of the difference.

    Gains that are not larger than their error, or are smaller than ``min_gain``, do not count.

    >>> equal_best({16384: 0.12, 65536: 0.27, 262144: 0.31})
    [65536, 262144]
    """
    worth = {k: gain for k, gain in gains.items() if gain > gain_error(gain) and gain >= min_gain}
    best = max(worth.values(), default=0.0)
    return [key for key, gain in worth.items() if best - gain <= gain_error(best - gain)]


def points(difference: float) -> str:
    """A difference of shares in percentage points.

    >>> points(0.05)
    '5 points'
    """
    return units.percent(difference).replace("%", "points")


def saving(gain: float) -> str:
    """A predicted gain with the range that its error allows.

    >>> saving(0.072)
    '7 % (2 to 12 %)'
    """
    error = gain_error(gain)
    low, high = 100 * (gain - error), 100 * (gain + error)
    return f"{100 * gain:.0f} % ({low:.0f} to {high:.0f} %)"
