"""How much memory a program needs, and the guest (virtual machine) that runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from nearfar import paging_answers as answers
from nearfar import units
from nearfar.advise.one_vm import Advice
from nearfar.declared import paging as declared
from nearfar.errors import NearfarError
from nearfar.machine import Machine
from nearfar.memory_curve import MemoryCurve, allowed_slowdown
from nearfar.paging import paging
from nearfar.paging_findings import USUAL_PAGE
from nearfar.schema import default

MIB: Final = 1 << 20
#: Memory for the guest's system, an assumption: the minimum of Debian 11's installation guide
#: (section 3.4, no desktop; it recommends twice as much).
SYSTEM: Final = 256 * MIB
#: Bytes of ``struct page``, which the kernel keeps for each 4 KiB page (64-bit machines).
PAGE_STRUCT: Final = 64
#: The memory of a guest is a multiple of this.
STEP: Final = 256 * MIB


@dataclass(frozen=True)
class Enough:
    """How much memory a program needs to run well.

    Attributes:
        curve: time by memory size.
        slowdown: share by which it may be slower than with memory for all its pages.
    """

    curve: MemoryCurve
    slowdown: float

    def write(self, row: Advice) -> None:
        """Fill in the row's columns, and append a sentence to ``why``."""
        enough = (self.curve.enough(self.slowdown) or self.curve.whole).bytes
        below = self.curve.thrashes_below
        row["enough_bytes"], row["wanted_bytes"] = enough, self.curve.whole.bytes
        row["thrashes_below_bytes"] = None if below is None else below.bytes
        thrashes = [] if below is None else [units.size(below.bytes)]
        sentence = answers.memory_sentence(
            [units.size(enough)], thrashes, self.curve.whole.bytes, self.slowdown
        )
        row["why"] += f" {sentence[0].upper()}{sentence[1:]}"


def guest_memory(program: int, system: int = SYSTEM) -> int:
    """Memory of a guest whose program and system need these; all in bytes.

    >>> guest_memory(600 << 20) >> 20
    1024
    """
    # Of every 64 pages, one holds page structures. Both divisions round up.
    per_page = USUAL_PAGE // PAGE_STRUCT
    needed = -(-(program + system) * per_page // (per_page - 1))
    return -(-needed // STEP) * STEP


def enough(
    trace: Path,
    machine: Machine,
    storages: Sequence[str],
    given: declared.Options,
    slowdown: str | float,
    progress: Callable[[int], None] | None,
) -> dict[str, Enough]:
    """The memory with which a program is at most ``slowdown`` slower, by storage.

    Args:
        trace: its folder.
        machine: the machine.
        storages: storages of the machine.
        given: options of the advice's paging study.
        slowdown: such as ``5%``.
        progress: called now and then with the number of records done.
    """
    options = {
        **given,
        "machine": machine,
        "storage": list(storages),
        "page_sizes": [USUAL_PAGE],
        "memory": default(declared.OPTIONS, "memory"),
        "slowdown": slowdown,
    }
    study = paging(trace, progress=progress, **cast("declared.Options", options))
    curves = {curve.name: curve for curve in answers.memory_curves(study)}
    if not curves:
        raise NearfarError(
            f"{trace}: --slowdown: the program touches too little memory to "
            f"compare memory sizes; leave --slowdown out"
        )
    limit = allowed_slowdown(study.run, declared.OPTIONS)
    return {storage: Enough(curves[storage], limit) for storage in storages}


def size_guest(row: Advice, whole: bool) -> None:
    """Fill in the memory of the guest, and append a sentence to ``why``.

    Args:
        row: the advice.
        whole: whether the trace is of a whole virtual machine, its system included.
    """
    # Larger pages can also lower the peak (`bloat_bytes` < 0); the guest gets no less for that.
    program = row["memory_bytes"] + max(row["bloat_bytes"] or 0, 0)
    if whole:
        row["guest_memory_bytes"] = memory = guest_memory(program, 0)
        needed = f"it needs {units.size(program)}, with its kernel"
        row["why"] += f" Give the guest {units.size(memory)}: {needed}."
        return
    row["guest_memory_bytes"] = memory = guest_memory(program)
    row["why"] += (
        f" Give the guest {units.size(memory)}: {units.size(program)} for the program, "
        f"{units.size(SYSTEM)} for its system, the rest for the kernel's page structures."
    )
