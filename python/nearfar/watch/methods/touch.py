"""Paging out once: anonymous memory that is swapped in again was used.

Pages out each anonymous area (``process_madvise``, ``MADV_PAGEOUT``). Windows (periods) of growing
length begin then, and at the end of each it reads how much is resident again. Unlike accessed bits,
it works for memory of virtual machines, and unused memory stays in swap. Each used page is swapped
in once, which slows the target down. Paging everything out must fit in the whole watch's budget.

Do not use: without fast swap such as zram. Pages that the kernel reads ahead count as used.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Final

from nearfar.errors import NearfarError
from nearfar.watch.methods import Progress
from nearfar.watch.samples import Memory, Watched, cycles, read
from nearfar.watch.target import PROC, Target, denied

SUMMARY: Final = "paging memory out once; what is swapped in again is in use"
ERROR: Final = (0.2, 0.1)

#: Bytes to page out at a time. The total cost is estimated once this many are paged out.
CHUNK: Final = 4 << 20

#: System calls (asm-generic/unistd.h), and MADV_PAGEOUT.
_PIDFD_OPEN, _PROCESS_MADVISE, _PAGEOUT = 434, 440, 21
#: A readable anonymous area of ``/proc/PID/maps``: start, end, name.
_AREA = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) r(?:\S+) \S+ \S+ \d+ *(\[heap\]|\[anon.*\]|)$", re.M)


class _Range(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def lacks(target: Target) -> str | None:
    """What is missing for the target."""
    swaps = (PROC / "swaps").read_text().splitlines()[1:]
    if not swaps:
        return "there is no swap here"
    for pid in target.pids():
        missing = denied(pid, "smaps")
        if missing is not None:
            return missing
    if os.geteuid() != 0:
        return "paging out another process needs root (CAP_SYS_NICE)"
    return None


def watch(target: Target, seconds: float, share: float, progress: Progress) -> Watched:
    """Observe the target; see :class:`nearfar.watch.methods.Method`."""

    def begin(pids: Sequence[int]) -> None:
        _page_out(target.name, pids, share * seconds)

    return cycles(target, [seconds], share, progress, begin, _came_back)


def _came_back(memory: Memory) -> tuple[float, float]:
    # Nothing clears the accessed bits of file pages, so `used_file` includes earlier use.
    return memory.anonymous, memory.used_file


def _page_out(name: str, pids: Sequence[int], allowed: float) -> None:
    """Page everything out, in at most ``allowed`` seconds of processor time.

    Raises:
        NearfarError: it would take more.
    """
    memory, began, done = read(pids), time.thread_time(), 0
    total = memory.anonymous if memory is not None else 0.0
    for count in _chunks(pids):
        done += count
        spent = time.thread_time() - began
        # The first areas are too small to extrapolate; `done` also counts addresses without memory.
        expected = spent * (max(total / done, 1.0) if done >= CHUNK else 1.0)
        if expected > allowed:
            raise NearfarError(
                f"{name}: paging its memory out takes {expected:.2g} s, too much for a budget of "
                f"{allowed:.2g} s; give more time (--for) or --budget"
            )


def _chunks(pids: Sequence[int]) -> Iterator[int]:
    """Page out the memory of processes chunk by chunk; yields the bytes of each."""
    library = ctypes.CDLL(None, use_errno=True)
    for pid in pids:
        handle = library.syscall(_PIDFD_OPEN, pid, 0)
        if handle < 0:
            continue  # it has ended
        try:
            text = (PROC / str(pid) / "maps").read_text(errors="replace")
            for start, end, _ in _AREA.findall(text):
                at, stop = int(start, 16), int(end, 16)
                while at < stop:
                    chunk = _Range(at, min(CHUNK, stop - at))
                    done = library.syscall(
                        _PROCESS_MADVISE, handle, ctypes.byref(chunk), ctypes.c_size_t(1),
                        _PAGEOUT, 0,
                    )  # fmt: skip
                    if done <= 0:
                        break
                    at += done
                    yield done
        except OSError:
            continue
        finally:
            os.close(handle)
