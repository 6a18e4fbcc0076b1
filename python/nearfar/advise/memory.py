"""How much memory: what a program runs well with, and what to give a guest that runs it."""

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
from nearfar.memory_curve import MemoryCurve
from nearfar.memory_curve import slowdown as asked_slowdown
from nearfar.paging import paging
from nearfar.paging_findings import USUAL_PAGE
from nearfar.schema import default

MIB: Final = 1 << 20
#: What a guest's own system takes, an assumption: the least that Debian 11's installation guide
#: asks for (section 3.4, no desktop; it recommends twice as much).
SYSTEM: Final = 256 * MIB
#: The kernel describes each page of 4 KiB in 64 bytes (``struct page`` on 64-bit machines).
DESCRIBED: Final = 64
#: Guests are given multiples of it.
STEP: Final = 256 * MIB


@dataclass(frozen=True)
class Enough:
    """How much memory a program runs well with.

    Attributes:
        curve: time against memory size.
        slowdown: how much longer than with all its memory it may take.
    """

    curve: MemoryCurve
    slowdown: float

    def write(self, row: Advice) -> None:
        """Fill the row's columns, and say it."""
        # The largest size is enough, as it is compared with itself.
        enough = (self.curve.enough(self.slowdown) or self.curve.whole).bytes
        below = self.curve.thrashes_below
        row["enough_bytes"], row["wanted_bytes"] = enough, self.curve.whole.bytes
        row["thrashes_below_bytes"] = None if below is None else below.bytes
        least = [] if below is None else [units.size(below.bytes)]
        said = answers.memory_sentence(
            [units.size(enough)], least, self.curve.whole.bytes, self.slowdown
        )
        row["why"] += f" {said[0].upper()}{said[1:]}"


def guest_memory(program: int) -> int:
    """Bytes to give a guest whose program takes ``program``.

    >>> guest_memory(600 << 20) >> 20
    1024
    """
    part = USUAL_PAGE // DESCRIBED
    needed = -(-(program + SYSTEM) * part // (part - 1))
    return -(-needed // STEP) * STEP


def enough(
    trace: Path,
    machine: Machine,
    storages: Sequence[str],
    given: declared.Options,
    slowdown: str | float,
    progress: Callable[[int], None] | None,
) -> dict[str, Enough]:
    """By storage, with how much memory a program takes at most ``slowdown`` longer than with all.

    Args:
        trace: its folder.
        machine: the machine; storages: those of it that are asked about.
        given: options of the paging study behind the advice.
        slowdown: such as ``5%``.
        progress: called now and then with the records done.
    """
    own = {
        "machine": machine,
        "storage": list(storages),
        "page_sizes": [USUAL_PAGE],
        "memory": default(declared.OPTIONS, "memory"),
        "slowdown": slowdown,
    }
    found = paging(trace, progress=progress, **cast("declared.Options", {**given, **own}))
    most = asked_slowdown(found.run, declared.OPTIONS)
    curves = {curve.name: curve for curve in answers.memory_curves(found)}
    if not curves:
        raise NearfarError(f"{trace}: --slowdown: too little memory to compare sizes; leave it out")
    return {storage: Enough(curves[storage], most) for storage in storages}


def size_guest(row: Advice) -> None:
    """Fill in the memory of the guest, and say it."""
    row["guest_memory_bytes"] = memory = guest_memory(row["memory_bytes"])
    row["why"] += (
        f" Give the guest {units.size(memory)}: the program's {units.size(row['memory_bytes'])}, "
        f"{units.size(SYSTEM)} for its system, and what describes its pages."
    )
