"""Runs, their median and spread, and how they are formatted."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final

from nearfar.units import digits, duration

#: A value is noisy if the interquartile range is more than this share of the median.
NOISY: Final = 0.1


@dataclass(frozen=True)
class Samples:
    """One number per run, all in one unit.

    >>> Samples((84.1, 83.2, 86.0)).described("ns")
    'measured: median 84.1 ns, 83.2-86 in 3 runs'
    """

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the runs, which is the measured value."""
        return statistics.median(self.runs)

    @property
    def noisy(self) -> bool:
        """Whether the interquartile range exceeds :data:`NOISY`; it ignores single outliers."""
        if len(self.runs) < 2:
            return False
        first, _, third = statistics.quantiles(self.runs, n=4, method="inclusive")
        return third - first > NOISY * abs(self.median)

    def scaled(self, factor: float) -> Samples:
        """Each run, times ``factor``."""
        return Samples(tuple(run * factor for run in self.runs))

    def described(self, unit: str) -> str:
        """Median and range."""
        spread = f"{digits(min(self.runs))}-{digits(max(self.runs))}"
        word = "noisy, measured" if self.noisy else "measured"
        return f"{word}: median {digits(self.median)} {unit}, {spread} in {len(self.runs)} runs"


def time_text(nanoseconds: float) -> str:
    """A time in the format of machine files.

    >>> time_text(84.1), time_text(1234.0)
    ('84.1ns', '1.23us')
    """
    # Machine files have whole picoseconds.
    return duration(max(round(nanoseconds, 3), 0.001)).replace(" ", "")


def rate_text(bytes_per_second: float) -> str:
    """A bandwidth in the format of machine files.

    >>> rate_text(21.34e9)
    '21.3GB/s'
    """
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6), ("KB/s", 1e3)):
        if bytes_per_second >= scale:
            return f"{digits(bytes_per_second / scale)}{unit}"
    return f"{round(bytes_per_second)}B/s"


def size_text(count: int) -> str:
    """Bytes in the format of machine files: with the largest unit that divides them.

    >>> size_text(32768), size_text(24684096 * 1024)
    ('32KiB', '24684096KiB')
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count % (1 << power) == 0:
            return f"{count >> power}{unit}"
    return f"{count}B"
