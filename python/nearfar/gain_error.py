"""The error of the gain that ``paging --view machine`` predicts, against measurements.

Gains and errors are shares of the run time with 4 KiB pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from nearfar import units

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


def worthwhile(gains: Mapping[int, float], min_gain: float = 0.0) -> int | None:
    """The page size to use; None if no gain is larger than its error.

    It is the smallest size whose gain differs from the best by no more than the error of the
    difference: smaller pages waste less memory.

    >>> worthwhile({65536: 0.27, 131072: 0.29, 262144: 0.31})
    65536

    Args:
        gains: by page size.
        min_gain: smaller gains do not count.
    """
    worth = {s: gain for s, gain in gains.items() if gain > gain_error(gain) and gain >= min_gain}
    best = max(worth.values(), default=0.0)
    equal = [size for size, gain in worth.items() if best - gain <= gain_error(best - gain)]
    return min(equal, default=None)


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
