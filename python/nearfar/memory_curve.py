"""Time against memory size: the slowdown with less memory, and how much memory is enough.

Used for all memory of a program (:mod:`nearfar.paging_answers`), and for its fast memory
(:mod:`nearfar.tiering_answers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nearfar import units
from nearfar.provenance import Run
from nearfar.schema import Option, default

#: Two times count as equal if their ratio is smaller than this.
SAME: Final = 1.01
#: A program thrashes if it takes more than this many times as long as with enough memory.
THRASHES: Final = 2.0
#: Bytes that are enough for any program.
ENOUGH: Final = 1 << 44


@dataclass(frozen=True)
class Memory:
    """One memory size of a result.

    Attributes:
        bytes: its size.
        fraction: the size as a share of the program's memory; None if it was given in bytes.
    """

    bytes: int
    fraction: float | None

    @property
    def label(self) -> str:
        """``50 %`` or ``12 MiB``, as it was given."""
        return units.size(self.bytes) if self.fraction is None else units.percent(self.fraction)

    @property
    def full_label(self) -> str:
        """``50 %, 12 MiB``, or ``12 MiB``."""
        return self.label if self.fraction is None else f"{self.label}, {units.size(self.bytes)}"

    @property
    def phrase(self) -> str:
        """The label in a sentence."""
        return f"{self.label} memory" if self.fraction is not None else f"{self.label} of memory"


def in_order(memories: Iterable[Memory]) -> list[Memory]:
    """The distinct memory sizes, smallest first."""
    return sorted(set(memories), key=lambda memory: (memory.bytes, memory.fraction or 0.0))


def middle(memories: Sequence[Memory]) -> Memory | None:
    """The memory size to show first: nearest to 50 %, or the middle of the list."""
    shares = [memory for memory in memories if memory.fraction is not None]
    if shares:
        return min(shares, key=lambda memory: abs((memory.fraction or 0.0) - 0.5))
    return memories[(len(memories) - 1) // 2] if memories else None


@dataclass(frozen=True)
class MemoryCurve:
    """Time against memory size.

    Attributes:
        name: a storage or a tiering policy.
        times: memory sizes, smallest first, and nanoseconds per reference.
        base: the time that slowdowns refer to; None: the time of the largest memory.
    """

    name: str
    times: tuple[tuple[Memory, float], ...]
    base: float | None = None

    @classmethod
    def of(cls, name: str, times: Mapping[Memory, float], base: float | None = None) -> MemoryCurve:
        """A curve from times in any order."""
        return cls(name, tuple((memory, times[memory]) for memory in in_order(times)), base)

    @property
    def slowdowns(self) -> list[tuple[Memory, float]]:
        """Memory sizes, smallest first, and their slowdowns as a share of the base."""
        base = self.times[-1][1] if self.base is None else self.base
        return [(memory, time / base - 1) for memory, time in self.times]

    @property
    def whole(self) -> Memory:
        """The largest memory size."""
        return self.times[-1][0]

    def enough(self, slowdown: float) -> Memory | None:
        """The smallest memory such that it and all larger ones have at most this slowdown.

        None if the largest has more, which is possible only with a ``base``.
        """
        smallest = None
        for memory, slower in reversed(self.slowdowns):
            # Tolerance for rounding: 130 / 100 - 1 > 0.3.
            if slower > slowdown + 1e-9:
                break
            smallest = memory
        return smallest

    @property
    def thrashes_below(self) -> Memory | None:
        """The smallest memory that, like all larger ones, does not thrash.

        None if the largest thrashes, or no size does.
        """
        memory = self.enough(THRASHES - 1)
        return None if memory == self.times[0][0] else memory


def allowed_slowdown(run: Run, options: Iterable[Option]) -> float:
    """The slowdown that the run's option ``slowdown`` allows: 0.05 is 5 %."""
    value = run.get("options", {}).get("slowdown", default(options, "slowdown"))
    return float(value.rstrip("%")) / 100 if isinstance(value, str) else float(value)
