"""Recommendations from a paging result: page size, memory size, storage.

Pass a result of several machines through :func:`nearfar.paging_findings.with_machine_names` first,
which renames storages so that they show their machines.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearfar import units
from nearfar.declared import paging as declared
from nearfar.gain_error import gain_error, points, saving
from nearfar.memory_curve import SAME, Memory, MemoryCurve, allowed_slowdown
from nearfar.page_choice import (
    LEAST_SHOWN,
    PageChoice,
    counted_ns,
    needed_kernel,
    private_bytes,
    start_sentence,
)
from nearfar.paging import PagingResult, counts_whole, enough_for_left_out
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
    page, whole = curve_page(result), counts_whole(result.run)
    curves = []
    for storage in storages(result):
        times = {
            memory_of(row): counted_ns(row, whole)
            for row in result.rows
            if row["storage"] == storage and row["page_bytes"] == page
        }
        if len(times) > 1:
            curves.append(MemoryCurve.of(storage, times))
    return curves


def curve_page(result: PagingResult) -> int:
    """The page size of the curves: 4 KiB, or the smallest if that was not studied."""
    sizes = page_sizes(result)
    return USUAL_PAGE if USUAL_PAGE in sizes else min(sizes)


def _has_whole(result: PagingResult) -> bool:
    """Whether the largest memory size holds the peak resident set."""
    run = result.run
    whole = run.get("peak_resident_bytes") or run.get("footprint_bytes") or 0
    largest = max((memory.bytes for memory in memories(result)), default=0)
    return largest >= whole


def answers(result: PagingResult) -> list[str]:
    """A sentence each on page size, memory size and storage, if the study covers them."""
    if not result.rows:
        return ["The result has no rows."]
    hosts = machines(result)
    lines = [f"Page size on {name}: {_page_size(of_machine(result, name))}" for name in hosts]
    lines = lines or [f"Page size: {_page_size(result)}"]
    curves = memory_curves(result)
    if curves:
        limit = allowed_slowdown(result.run, declared.OPTIONS)
        lines.append(f"Memory: {_memory(curves, limit)}")
        if len(curves) > 1:
            lines.append(f"{'Machine' if hosts else 'Storage'}: {_storage(curves, limit)}")
    if hosts:
        lines.append(f"Latency of memory: {_latencies(result)}.")
    return lines


def _page_size(result: PagingResult) -> str:
    """The page size with the shortest time.

    With ``--view machine``: at the largest memory size, the smallest page size whose gain does not
    differ from the best by more than the error.
    """
    if result.run.get("sampled_pages") is not None:
        return _of_sample(result)
    best: Best = best_pages(result)[answered_memory(result), storages(result)[0]]
    if best.row.get("cpu_ns") is None:
        return best.sentence[0].lower() + best.sentence[1:]
    if best.gain is None or best.usual is None:
        return best.sentence
    needs, start = needed_kernel(best.row), start_sentence(best.rows, best)
    text = _choice(best, best.gain, best.usual)
    text += f" This {needs}." if needs else ""
    return f"{text} {start}" if start else text


def _of_sample(result: PagingResult) -> str:
    """The page size that saves the most at the largest memory size, if that is certain."""
    memory, storage = memories(result)[-1], storages(result)[0]
    best = best_pages(result)[memory, storage]
    others = [row for row in best.rows if row["page_bytes"] != USUAL_PAGE]
    usual = units.size(USUAL_PAGE)
    if not others or best.usual is None:
        if enough_for_left_out(result.run):
            return "a sampled trace shows what larger pages save only with memory for all pages."
        return f"{usual}; no larger one was simulated."
    row = min(others, key=lambda row: row["total_ns"])
    low, gain, high = gain_interval(best.usual, row)
    if gain < LEAST_SHOWN:
        return f"stay with {usual}; at {memory.phrase}, no other simulated size takes less time."
    size = units.size(row["page_bytes"])
    interval = f"95 % interval {units.percent(low)} to {units.percent(high)}"
    if low <= 0:
        return (
            f"stay with {usual}; at {memory.phrase}, {size} pages would save "
            f"{units.percent(gain)} of the time, which is not certain ({interval})."
        )
    return (
        f"at {memory.phrase}, {size} pages take {units.percent(gain)} less time than {usual} "
        f"pages ({interval})."
    )


def gain_interval(usual: declared.Row, row: declared.Row) -> tuple[float, float, float]:
    """The share of the time with ``usual`` that ``row`` saves: low end, estimate, high end (95 %).

    Both rows are estimates from a sample. The interval is conservative: it ignores that their
    errors partly cancel, as both come from the same sampled references.
    """
    (least, ns, most), (usual_least, usual_ns, usual_most) = map(_times, (row, usual))
    return 1 - most / usual_least, 1 - ns / usual_ns, 1 - least / usual_most


def _times(row: declared.Row) -> tuple[float, float, float]:
    """The time per reference: lower end of its interval, estimate, upper end."""
    low, ns, high = row["total_ns_low"], row["total_ns"], row["total_ns_high"]
    return ns if low is None else low, ns, ns if high is None else high


def _choice(choice: PageChoice, gain: float, base: declared.Row) -> str:
    """The choice of a page size in words, with ``--view machine``."""
    fastest, when = choice.fastest["page_bytes"], choice.when
    most, size, usual = choice.gains[fastest], units.size(fastest), units.size(USUAL_PAGE)
    refusal = "" if choice.refusal is None else f"; {choice.refusal}"
    if choice.page_bytes == USUAL_PAGE:
        if refusal:
            return f"stay with {usual}{refusal}."
        if most < LEAST_SHOWN:
            return f"stay with {usual}; no other simulated size takes less time{when}."
        return (
            f"stay with {usual}; {size} pages take {units.percent(most)} less time{when}, which is "
            f"within the error ({points(gain_error(most))})."
        )
    extra = private_bytes(choice.row) - private_bytes(base)
    bloat = f", but {units.size(extra)} more memory" if extra > 0 else ""
    faster = refusal
    if not refusal and choice.page_bytes != fastest:
        faster = f"; {size} pages would gain {points(most - gain)} more, which is within the error"
    return (
        f"{units.size(choice.page_bytes)} pages take {saving(gain)} less time{when} than {usual} "
        f"pages{bloat}{faster}."
    )


def _memory(curves: Sequence[MemoryCurve], limit: float) -> str:
    """How much memory is enough, and how much too little; ``limit``: the allowed slowdown."""
    enough = [(_enough(curve, limit).bytes, curve.name) for curve in curves]
    below = [
        (memory.bytes, curve.name)
        for curve in curves
        if (memory := curve.thrashes_below) is not None
    ]
    whole, count = curves[0].whole.bytes, len(curves)
    return memory_sentence(_sizes_on(enough, count), _sizes_on(below, count), whole, limit)


def memory_sentence(enough: Sequence[str], below: Sequence[str], whole: int, limit: float) -> str:
    """How much memory is enough, and how much too little; ``whole``: bytes of the program."""
    text = (
        f"with {', '.join(enough)} it is at most {units.percent(limit)} slower than with enough "
        f"memory ({units.size(whole)})"
    )
    if below:
        text += f"; below {', '.join(below)} it thrashes (takes more than twice as long)"
    return f"{text}."


def _sizes_on(memories: Sequence[tuple[int, str]], storages: int) -> list[str]:
    """Memory sizes with their storages; one size without a storage if all storages have it."""
    sizes = [units.size(memory) for memory, _ in memories]
    if len(memories) == storages and len(set(sizes)) == 1:
        return sizes[:1]
    named = zip(sizes, memories, strict=True)
    return [f"{size} on {units.clean(storage)}" for size, (_, storage) in named]


def _latencies(result: PagingResult) -> str:
    latencies = result.run["dram_ns"].items()
    return ", ".join(f"{units.clean(name)} {units.duration(ns)}" for name, ns in latencies)


def _enough(curve: MemoryCurve, limit: float) -> Memory:
    """The memory that is enough on one storage; the largest size always is."""
    return curve.enough(limit) or curve.whole


def _storage(curves: Sequence[MemoryCurve], limit: float) -> str:
    """The storages by time, with the least memory that is enough on one of them."""
    memory = min((_enough(curve, limit) for curve in curves), key=lambda memory: memory.bytes)
    times = sorted((dict(curve.times)[memory], curve.name) for curve in curves)
    (shortest, first), *others = times
    if times[-1][0] < SAME * shortest:
        return f"with {units.size(memory.bytes)} or more it makes no difference."
    slower = ", ".join(f"{units.clean(name)} takes {time / shortest:.3g}" for time, name in others)
    return (
        f"with {units.size(memory.bytes)}, {units.clean(first)} is fastest; {slower} times as long."
    )
