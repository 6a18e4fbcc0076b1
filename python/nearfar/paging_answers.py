"""What a person asks of a paging result: which page size, how much memory, which storage.

The input is the dict that ``nearfar paging --format json`` prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nearfar import units
from nearfar.declared.paging import OPTIONS
from nearfar.gain_error import gain_error, points
from nearfar.paging_findings import (
    USUAL_PAGE,
    Best,
    Memory,
    Result,
    best_pages,
    memories,
    memory_of,
    middle_memory,
    rows,
    storages,
)
from nearfar.schema import default

#: Times that differ by less are the same.
_SAME: Final = 1.01
#: A program that takes so many times as long as with all its memory mostly waits for storage.
THRASHES: Final = 2.0


@dataclass(frozen=True)
class MemoryCurve:
    """Time against memory size on one storage, at the page size that most systems use.

    Attributes:
        storage: its name.
        page_bytes: the page size; the smallest that was studied where 4 KiB was not.
        times: memory sizes, smallest first, and nanoseconds per reference.
    """

    storage: str
    page_bytes: int
    times: tuple[tuple[Memory, float], ...]

    @property
    def slowdowns(self) -> list[tuple[Memory, float]]:
        """Memory sizes, smallest first, and how much longer it takes than with the largest."""
        least = self.times[-1][1]
        return [(memory, time / least - 1) for memory, time in self.times]

    @property
    def whole(self) -> Memory:
        """The largest memory size."""
        return self.times[-1][0]

    def enough(self, slowdown: float) -> Memory:
        """The smallest memory from which on the program takes at most ``slowdown`` longer."""
        return self._from(slowdown)

    @property
    def thrashes_below(self) -> Memory | None:
        """The smallest memory from which on it takes less than twice as long; None if it always
        does."""
        found = self._from(THRASHES - 1)
        return None if found == self.times[0][0] else found

    def _from(self, most: float) -> Memory:
        found = self.whole
        for memory, slowdown in reversed(self.slowdowns):
            # 130 / 100 - 1 is more than 0.3.
            if slowdown > most + 1e-9:
                break
            found = memory
        return found


def memory_curves(result: Result) -> list[MemoryCurve]:
    """Time against memory size, on each storage; empty where all the memory was not studied."""
    sizes = {row["page_bytes"] for row in rows(result)}
    if not sizes or not _has_all(result):
        return []
    page = USUAL_PAGE if USUAL_PAGE in sizes else min(sizes)
    found = []
    for storage in storages(result):
        times = {
            memory_of(row): row["total_ns"]
            for row in rows(result)
            if row["storage"] == storage and row["page_bytes"] == page
        }
        ordered = sorted(times, key=lambda memory: (memory.bytes, memory.fraction or 0.0))
        if len(ordered) > 1:
            in_order = tuple((memory, times[memory]) for memory in ordered)
            found.append(MemoryCurve(storage, page, in_order))
    return found


def _has_all(result: Result) -> bool:
    """Whether the largest memory size that was studied holds all that the program had at once."""
    run = result["run"]
    whole = run.get("peak_resident_bytes") or run.get("footprint_bytes") or 0
    most = max((memory.bytes for memory in memories(result)), default=0)
    return most >= whole


def slowdown(result: Result) -> float:
    """How much longer the program may take, as it was asked."""
    asked = result["run"].get("options", {}).get("slowdown", default(OPTIONS, "slowdown"))
    return float(asked.rstrip("%")) / 100 if isinstance(asked, str) else float(asked)


def answers(result: Result) -> list[str]:
    """A sentence each: which page size, how much memory, which storage, as far as studied."""
    if not rows(result):
        return ["The result has no rows."]
    found = [f"Page size: {_page_size(result)}"]
    curves = memory_curves(result)
    if curves:
        found.append(f"Memory: {_memory(curves, slowdown(result))}")
        if len(curves) > 1:
            found.append(f"Storage: {_storage(curves, slowdown(result))}")
    return found


def _page_size(result: Result) -> str:
    """The page size with the least time; with the most memory where what misses cost is known."""
    storage, sizes = storages(result)[0], memories(result)
    best: Best = best_pages(result)[sizes[-1], storage]
    if best.row.get("cpu_ns") is None:
        sentence = best_pages(result)[middle_memory(result) or sizes[-1], storage].sentence
        return sentence[0].lower() + sentence[1:]
    if best.gain is None or best.usual is None:
        return best.sentence
    error = gain_error(best.gain)
    size, usual = units.size(best.page_bytes), units.size(USUAL_PAGE)
    if best.page_bytes == USUAL_PAGE:
        return f"stay with {usual}; no other that was tried takes less time."
    saves = units.percent(best.gain)
    if best.gain <= error:
        return (
            f"stay with {usual}; {size} saves {saves}, which is within the error, {points(error)}."
        )
    more = (best.row["resident_bytes"] or 0) - (best.usual["resident_bytes"] or 0)
    bloat = f", and holds {units.size(more)} more memory" if more > 0 else ""
    return f"{size} saves {saves} of the time with {usual}, give or take {points(error)}{bloat}."


def _memory(curves: Sequence[MemoryCurve], most: float) -> str:
    """How much memory is enough, and how much too little."""
    whole = curves[0].whole
    enough: list[tuple[Memory, str]] = []
    below: list[tuple[Memory, str]] = []
    for curve in curves:
        enough.append((curve.enough(most), curve.storage))
        if (least := curve.thrashes_below) is not None:
            below.append((least, curve.storage))
    text = (
        f"with {_sizes_on(enough, len(curves))} it runs within {units.percent(most)} of having "
        f"all that it wants ({units.size(whole.bytes)})"
    )
    if not below:
        return f"{text}."
    return f"{text}; below {_sizes_on(below, len(curves))} it thrashes (twice the time)."


def _sizes_on(found: Sequence[tuple[Memory, str]], storages: int) -> str:
    """Memory sizes, each with its storage where they differ or do not concern all storages."""
    sizes = [units.size(memory.bytes) for memory, _ in found]
    if len(found) == storages and len(set(sizes)) == 1:
        return sizes[0]
    named = zip(sizes, found, strict=True)
    return ", ".join(f"{size} on {units.clean(storage)}" for size, (_, storage) in named)


def _storage(curves: Sequence[MemoryCurve], most: float) -> str:
    """The storages by their time with what is enough memory on the best of them."""
    memory = min((curve.enough(most) for curve in curves), key=lambda memory: memory.bytes)
    times = sorted((dict(curve.times)[memory], curve.storage) for curve in curves)
    (least, first), *others = times
    if times[-1][0] < _SAME * least:
        return f"with {units.size(memory.bytes)} or more it makes no difference."
    behind = ", ".join(f"{units.clean(name)} {time / least:.3g}x" for time, name in others)
    return (
        f"with {units.size(memory.bytes)} it is fastest on {units.clean(first)}; times as long: "
        f"{behind}."
    )
