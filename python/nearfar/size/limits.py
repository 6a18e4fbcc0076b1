"""Limits of memory that the recorded run would have survived, and reasons to advise none."""

from __future__ import annotations

from typing import Final

from nearfar import units
from nearfar.info import Content
from nearfar.phases import phases, sentence

MIB: Final = 1 << 20
#: 1 / HEADROOM of the peak is added for larger inputs. An assumption.
HEADROOM: Final = 4
#: The kernel's memory that is charged to a control group, such as page tables (1/512 of the
#: memory), stacks of threads, sockets, files. An assumption.
KERNEL: Final = 8 * MIB
#: A limit that saves a smaller share of memory is not worth its risk.
WORTH: Final = 0.05
#: 1 / MARGIN is added to the memory that is enough. An assumption.
MARGIN: Final = 10


def maximum(peak: int) -> int:
    """``memory.max``: the peak resident set, headroom, and the kernel's memory."""
    return whole_mib(peak + peak // HEADROOM + KERNEL)


def high(needed: int, peak: int, locked: int) -> int | None:
    """``memory.high``: a margin above ``needed``, and above locked memory, which stays resident.

    None if it would save less than :data:`WORTH`.
    """
    least = whole_mib(max(needed, locked) + needed // MARGIN + KERNEL)
    return least if least <= peak * (1 - WORTH) else None


def refused(content: Content) -> str | None:
    """Why no limit may be advised; None if one may."""
    if not content["complete"]:
        reason = content["incomplete_reason"] or "it is still being written"
        return f"the trace is incomplete: {reason}"
    if content["source"]["kind"] != "capture":
        return "the trace does not say when memory is freed"
    missing = content["source"].get("unrecorded")
    if missing is None:
        return "an older nearfar recorded the trace, and does not say whether it is whole"
    if missing:
        return f"not recorded: {'; '.join(missing)}"
    return None


def risk(content: Content) -> str:
    """What the answer does not cover."""
    if sample := content["source"].get("sample"):
        share = units.percent(sample["rate"])
        first = f"the memory size is an upper bound, from a sample of {share} of the pages"
    else:
        first = sentence(phases(content["working_set"]))
    parts = [first, "memory that other inputs or a longer run need is not seen"]
    return "; ".join(filter(None, parts))


def whole_mib(size: int) -> int:
    """A size rounded up to a MiB, in bytes."""
    return -(-size // MIB) * MIB
