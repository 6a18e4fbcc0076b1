"""Recommendations from a paging result: page size, memory size, storage.

Results of several machines have been through :func:`nearfar.paging_findings.by_place`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nearfar import units
from nearfar.declared import paging as declared
from nearfar.gain_error import gain_error, points, saving, worthwhile
from nearfar.memory_curve import SAME, Memory, MemoryCurve, slowdown
from nearfar.paging import PagingResult
from nearfar.paging_findings import (
    USUAL_PAGE,
    Best,
    answered_memory,
    best_pages,
    machines,
    memories,
    memory_of,
    of_machine,
    page_sizes,
    storages,
)


def memory_curves(result: PagingResult) -> list[MemoryCurve]:
    """Time against memory size, on each storage; empty if no size holds the whole program."""
    if not result.rows or not _has_whole(result):
        return []
    page = curve_page(result)
    found = []
    for storage in storages(result):
        times = {
            memory_of(row): row["total_ns"]
            for row in result.rows
            if row["storage"] == storage and row["page_bytes"] == page
        }
        if len(times) > 1:
            found.append(MemoryCurve.of(storage, times))
    return found


def curve_page(result: PagingResult) -> int:
    """The page size of the curves: 4 KiB, or the smallest if that was not studied."""
    sizes = page_sizes(result)
    return USUAL_PAGE if USUAL_PAGE in sizes else min(sizes)


def _has_whole(result: PagingResult) -> bool:
    """Whether the largest memory size holds the peak resident set."""
    run = result.run
    whole = run.get("peak_resident_bytes") or run.get("footprint_bytes") or 0
    most = max((memory.bytes for memory in memories(result)), default=0)
    return most >= whole


def answers(result: PagingResult) -> list[str]:
    """A sentence each on page size, memory size and storage, if the study covers them."""
    if not result.rows:
        return ["The result has no rows."]
    hosts = machines(result)
    lines = [f"Page size on {name}: {_page_size(of_machine(result, name))}" for name in hosts]
    lines = lines or [f"Page size: {_page_size(result)}"]
    curves = memory_curves(result)
    if curves:
        limit = slowdown(result.run, declared.OPTIONS)
        lines.append(f"Memory: {_memory(curves, limit)}")
        if len(curves) > 1:
            lines.append(f"{'Machine' if hosts else 'Storage'}: {_storage(curves, limit)}")
    if hosts:
        found.append(f"Latency of memory: {_latencies(result)}.")
    return found


def _page_size(result: PagingResult) -> str:
    """The page size with the shortest time.

    With ``--view machine``: at the largest memory size, the smallest page size whose gain does not
    differ from the best by more than the error.
    """
    best: Best = best_pages(result)[answered_memory(result), storages(result)[0]]
    if best.row.get("cpu_ns") is None:
        return best.sentence[0].lower() + best.sentence[1:]
    if best.gain is None or best.usual is None:
        return best.sentence
    error = gain_error(best.gain)
    size, usual = units.size(best.page_bytes), units.size(USUAL_PAGE)
    if best.page_bytes == USUAL_PAGE:
        return f"stay with {usual}; no other simulated size takes less time."
    if best.gain <= error:
        return (
            f"stay with {usual}; {size} pages take {units.percent(best.gain)} less time, which is "
            f"within the error ({points(error)})."
        )
    found = {
        row["page_bytes"]: replace(best, row=row)
        for row in result.rows
        if (memory_of(row), row["storage"]) == (best.memory, best.storage)
    }
    gains = {page: one.gain or 0.0 for page, one in found.items()}
    chosen = found[worthwhile(gains) or best.page_bytes]
    gain = chosen.gain or 0.0
    extra = (chosen.row["resident_bytes"] or 0) - (best.usual["resident_bytes"] or 0)
    bloat = f", but {units.size(extra)} more memory" if extra > 0 else ""
    faster = ""
    if chosen.page_bytes != best.page_bytes:
        difference = points(best.gain - gain)
        faster = f"; {size} pages would gain {difference} more, which is within the error"
    return (
        f"{units.size(chosen.page_bytes)} pages take {saving(gain)} less time than {usual} pages"
        f"{bloat}{faster}."
    )


def _memory(curves: Sequence[MemoryCurve], most: float) -> str:
    """How much memory is enough, and how much too little."""
    whole = curves[0].whole
    enough: list[tuple[int, str]] = []
    below: list[tuple[int, str]] = []
    for curve in curves:
        enough.append((_enough(curve, most).bytes, curve.name))
        if (least := curve.thrashes_below) is not None:
            below.append((least.bytes, curve.name))
    several = len(curves)
    return memory_sentence(_sizes_on(enough, several), _sizes_on(below, several), whole.bytes, most)


def memory_sentence(enough: Sequence[str], below: Sequence[str], whole: int, limit: float) -> str:
    """How much memory is enough, and how much too little; ``whole``: bytes of the program."""
    text = (
        f"with {', '.join(enough)} it is at most {units.percent(limit)} slower than with enough "
        f"memory ({units.size(whole)})"
    )
    if below:
        text += f"; below {', '.join(below)} it thrashes (takes more than twice as long)"
    return f"{text}."


def _sizes_on(found: Sequence[tuple[int, str]], storages: int) -> list[str]:
    """Memory sizes, each with its storage where they differ or do not concern all storages."""
    sizes = [units.size(memory) for memory, _ in found]
    if len(found) == storages and len(set(sizes)) == 1:
        return sizes[:1]
    named = zip(sizes, found, strict=True)
    return [f"{size} on {units.clean(storage)}" for size, (_, storage) in named]


def _latencies(result: PagingResult) -> str:
    """The DRAM latency of each machine."""
    latencies = result.run["dram_ns"].items()
    return ", ".join(f"{units.clean(name)} {units.duration(ns)}" for name, ns in latencies)


def _enough(curve: MemoryCurve, most: float) -> Memory:
    """What is enough on one storage: the largest size is, as it is compared with itself."""
    return curve.enough(most) or curve.whole


def _storage(curves: Sequence[MemoryCurve], most: float) -> str:
    """The storages by their time with what is enough memory on the best of them."""
    memory = min((_enough(curve, most) for curve in curves), key=lambda memory: memory.bytes)
    times = sorted((dict(curve.times)[memory], curve.name) for curve in curves)
    (least, first), *others = times
    if times[-1][0] < SAME * least:
        return f"with {units.size(memory.bytes)} or more it makes no difference."
    slower = ", ".join(f"{units.clean(name)} takes {time / shortest:.3g}" for time, name in others)
    return (
        f"with {units.size(memory.bytes)}, {units.clean(first)} is fastest; {slower} times as long."
    )
