"""Accessed bits: the kernel clears them, and later reports which pages were used.

Writes 1 to ``/proc/PID/clear_refs`` and reads ``Referenced`` of each area of ``/proc/PID/smaps``
(fs/proc/task_mmu.c) after windows of 20 ms to 30 s. A read takes about 40 ms per GiB, and holds the
lock of the address space, for which new mappings and some page faults wait.

Do not use: for a virtual machine under KVM (the guest's accessed bits are in other page tables). A
huge page counts as a whole once any of it is used. Reclaim takes cleared bits for unused memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nearfar.watch.methods import Progress
from nearfar.watch.samples import Memory, Watched, cycles, lengths
from nearfar.watch.target import PROC, Target, denied, is_virtual_machine

SUMMARY: Final = "accessed bits"
ERROR: Final = (0.1, 0.15)


def lacks(target: Target) -> str | None:
    """What is missing for the target."""
    pids = target.pids()
    for pid in pids:
        if (PROC / str(pid)).exists() and not (PROC / str(pid) / "clear_refs").exists():
            return "this kernel has no clear_refs (CONFIG_PROC_PAGE_MONITOR)"
        missing = denied(pid, "clear_refs", "smaps")
        if missing is not None:
            return missing
    if any(map(is_virtual_machine, pids)):
        return "it is a virtual machine, whose guest does not set these accessed bits"
    return None


def watch(target: Target, seconds: float, share: float, progress: Progress) -> Watched:
    """Observe the target; see :class:`nearfar.watch.methods.Method`."""
    return cycles(target, lengths(seconds), share, progress, _clear, _used)


def _clear(pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            (PROC / str(pid) / "clear_refs").write_text("1")
        except OSError:
            continue  # it has ended


def _used(memory: Memory) -> tuple[float, float]:
    return memory.used_anonymous, memory.used_file
