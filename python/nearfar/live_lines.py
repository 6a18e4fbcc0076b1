"""What a run came to, in lines of plain text."""

from __future__ import annotations

from typing import Any

from nearfar.units import duration, size

#: Part of the budget above which really resident memory is explained.
_ABOVE = 0.05
#: Far tiers whose bytes are fewer because they compress.
_COMPRESSES = ("zstd", "lz4")


def lines(run: Any) -> list[str]:
    """What a run (:class:`nearfar.live.Outcome`) came to, in three to five lines."""
    seen = run.counters
    demoted = seen["demotions_copied"] + seen["demotions_remapped"]
    found = [
        f"{_time(run)}. Peak: {size(run.fast_bytes)} fast, {_far(run)}",
        f"Promotions: {seen['promotions']:,} ({seen['shadow_copies']:,} kept a shadow). "
        f"Demotions: {demoted:,} ({seen['demotions_remapped']:,} to their shadow)",
        f"Faults: {seen['faults']:,} (hint {seen['hint_faults']:,}, shadow "
        f"{seen['shadow_faults']:,}, let through {seen['window_faults']:,}). "
        f"Aborted copies: {seen['aborts']:,}",
    ]
    if seen["fetches"]:
        predicted, each = (
            duration(seen[name] / seen["fetches"])
            for name in ("fetches_predicted_ns", "fetches_ns")
        )
        found.append(
            f"Waited for the far tier {seen['fetches']:,} times, {each} each (predicted "
            f"{predicted}): {seen['slept']:,} slept, {seen['stalled']:,} kept a processor busy"
        )
    above = resident(run)
    if above:
        found.append(above)
    if run.core_dumped:
        found.append("Core file: pages that were far are missing in it, and read as zeros")
    return found


def _time(run: Any) -> str:
    used = f"{run.seconds:.2f} s (CPU {run.user_seconds + run.system_seconds:.2f} s"
    if run.alone_seconds is None:
        return f"{used}; for the slowdown add --alone)"
    if run.slowdown is None:
        return f"{used}), bare {run.alone_seconds:.2f} s with exit code {run.alone_exit_code}"
    return f"{used}), {run.slowdown:.2g}x as long as bare ({run.alone_seconds:.2f} s)"


def _far(run: Any) -> str:
    far = f"{size(run.far_pages_bytes)} far"
    name = str(run.options["far"]).partition(":")[0]
    if name in _COMPRESSES and run.far_pages_bytes:
        return f"{far} (compressed to {size(run.far_bytes)})"
    return far


def resident(run: Any) -> str | None:
    """How much more memory was resident than asked for, and why; None where it was not much."""
    # Without the engine's count it is known where one process image was all there was.
    processes = run.resident_processes or (1 if run.images == 1 else None)
    if run.resident_bytes is None or processes is None:
        return None
    more = run.resident_bytes - processes * run.budget_bytes
    if more <= _ABOVE * processes * run.budget_bytes:
        return None
    fast = str(run.options["fast"])
    asked = f"--fast {fast}" + (f" ({size(run.budget_bytes)})" if fast.endswith("%") else "")
    if processes > 1:
        asked = f"{asked} of each of {processes} processes"
    parts = [
        f"{size(count)} {what}"
        for count, what in (
            (run.unmanaged_bytes, "in mappings that are not managed"),
            (run.held_bytes, "held in memory (locked, in I/O or shared with a child)"),
        )
        if count
    ]
    if run.counters["over_budget"]:
        parts.append("the far tier was full (give more --far-size)")
    why = f": {', '.join(parts)}" if parts else ""
    return f"Resident: {size(run.resident_bytes)}, {size(more)} above {asked}{why}"
