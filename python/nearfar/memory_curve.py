"""How much longer a program takes with less memory, and how much is enough.

For all its memory (:mod:`nearfar.paging_answers`), and for that part of it which is fast
(:mod:`nearfar.tiering_answers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nearfar import units
from nearfar.provenance import Run
from nearfar.schema import Option, default

#: Times that differ by less are the same.
SAME: Final = 1.01
#: A program that takes so many times as long as with all its memory mostly waits for storage.
THRASHES: Final = 2.0


@dataclass(frozen=True)
class Memory:
    """One memory size of a result.

    Attributes:
        bytes: its size.
        fraction: the share of the program's memory it was asked as; None for one in bytes.
    """

    bytes: int
    fraction: float | None

    @property
    def label(self) -> str:
        """``50 %`` or ``12 MiB``, whichever way it was asked for."""
        return units.size(self.bytes) if self.fraction is None else units.percent(self.fraction)

    @property
    def both(self) -> str:
        """``50 %, 12 MiB``, or ``12 MiB``."""
        return self.label if self.fraction is None else f"{self.label}, {units.size(self.bytes)}"

    @property
    def phrase(self) -> str:
        """The label as it stands in a sentence."""
        return f"{self.label} memory" if self.fraction is not None else f"{self.label} of memory"


def in_order(memories: Iterable[Memory]) -> list[Memory]:
    """Each memory size once, smallest first."""
    return sorted(set(memories), key=lambda memory: (memory.bytes, memory.fraction or 0.0))


def middle(memories: Sequence[Memory]) -> Memory | None:
    """The memory size to show first: nearest to half the program's, else the middle of the list."""
    shares = [memory for memory in memories if memory.fraction is not None]
    if shares:
        return min(shares, key=lambda memory: abs((memory.fraction or 0.0) - 0.5))
    return memories[(len(memories) - 1) // 2] if memories else None


@dataclass(frozen=True)
class MemoryCurve:
    """Time against memory size.

    Attributes:
        name: what it is of: a storage, or a tiering policy.
        times: memory sizes, smallest first, and nanoseconds per reference.
        base: the time that others are compared with; None for that with the largest memory.
    """

    name: str
    times: tuple[tuple[Memory, float], ...]
    base: float | None = None

    @classmethod
    def of(cls, name: str, times: Mapping[Memory, float], base: float | None = None) -> MemoryCurve:
        """A curve through times in any order."""
        return cls(name, tuple((memory, times[memory]) for memory in in_order(times)), base)

    @property
    def slowdowns(self) -> list[tuple[Memory, float]]:
        """Memory sizes, smallest first, and how much longer it takes than the base."""
        base = self.times[-1][1] if self.base is None else self.base
        return [(memory, time / base - 1) for memory, time in self.times]

    @property
    def whole(self) -> Memory:
        """The largest memory size."""
        return self.times[-1][0]

    def enough(self, slowdown: float) -> Memory | None:
        """The smallest memory from which on it takes at most ``slowdown`` longer; None: none does.

        Without a base of its own the largest always does.
        """
        found = None
        for memory, slower in reversed(self.slowdowns):
            # 130 / 100 - 1 is more than 0.3.
            if slower > slowdown + 1e-9:
                break
            found = memory
        return found

    @property
    def thrashes_below(self) -> Memory | None:
        """The smallest memory from which on it takes less than twice as long; None if it always
        does, or never."""
        found = self.enough(THRASHES - 1)
        return None if found == self.times[0][0] else found


def slowdown(run: Run, options: Iterable[Option]) -> float:
    """The share by which the program may take longer (``--slowdown``)."""
    asked = run.get("options", {}).get("slowdown", default(options, "slowdown"))
    return float(asked.rstrip("%")) / 100 if isinstance(asked, str) else float(asked)
