"""The size of one program.

The trace is simulated with ``--view machine``. First with enough memory at every page size, which
decides the page size. Then with 4 KiB pages over memory sizes, under the policy of Linux
(``linux``), which keeps what is used again and drops what is streamed once; what the page size adds
to memory is added to the result, because under pressure the kernel splits larger pages. The memory
that is enough is searched between the memory sizes of the first grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, cast

from nearfar import units
from nearfar.advise.architectures import transparent
from nearfar.advise.fleet import Vm
from nearfar.declared import paging as paging_declared
from nearfar.errors import NearfarError
from nearfar.gain_error import gain_error, saving
from nearfar.info import Content, info
from nearfar.memory_curve import THRASHES, slowdown
from nearfar.page_choice import (
    LEAST_SHOWN,
    USUAL_PAGE,
    PageChoice,
    counted_ns,
    start_gain,
    start_share,
)
from nearfar.page_choice import choose as choose_page
from nearfar.page_choice import private_bytes as _private
from nearfar.paging import PagingResult, machine_warnings, paging, trace_warnings
from nearfar.provenance import Run
from nearfar.size import limits
from nearfar.size.options import PASSED
from nearfar.size.swap import NONE
from nearfar.sizes import parse_bytes

if TYPE_CHECKING:
    from nearfar.declared import size as declared
    from nearfar.machine import Machine

#: Memory sizes of the first grid, as parts of the peak resident set.
GRID: Final = tuple(part / 10 for part in range(1, 11))
#: Smallest memory to simulate.
LEAST: Final = 8 * USUAL_PAGE
#: Steps between two memory sizes of the grid.
FINE: Final = 10

Progress = Callable[[int], None] | None


@dataclass(frozen=True)
class Sized:
    """The row of a program, warnings, and the hash of its trace."""

    row: declared.Row
    notes: list[str]
    trace_hash: str


@dataclass(frozen=True)
class Pages:
    """The choice of a page size.

    Attributes:
        chosen: the row of the paging study.
        usual: the row of 4 KiB pages.
        gain: share of the time that decides.
        why: the choice in words.
    """

    chosen: paging_declared.Row
    usual: paging_declared.Row
    gain: float
    why: str

    @property
    def bloat(self) -> int:
        """Bytes that the page size adds to private memory."""
        return max(_private(self.chosen) - _private(self.usual), 0)


def sized(vm: Vm, machine: Machine, options: declared.Options, progress: Progress) -> Sized:
    """Size the program of ``vm``."""
    content = info(vm.trace, heatmap=False, progress=progress).content
    swaps = vm.storage != NONE
    storage = vm.storage if swaps else next(iter(machine.storages))
    study = _Study(vm, machine, storage, options, progress)
    enough = study.run([1 << 44], None)
    pages = choose(enough.rows, whole=options["whole"], arch=vm.arch)
    page = pages.chosen["page_bytes"]
    peak = _private(pages.chosen) + mapped_files(content)
    resident = _resident(enough)
    limit = slowdown(cast("Run", {"options": options}), paging_declared.OPTIONS)
    curve = study.curve(_private(pages.usual) + mapped_files(content), resident)
    locked = content["locked_bytes"]
    ratio = float(options["zram_ratio"]) if storage == "zram" else math.inf
    private = _private(pages.chosen)
    if options["ram"] is not None:
        needed = left_by_zram(parse_bytes(options["ram"], "--ram"), private, ratio)
    elif swaps:
        needed = min(curve.enough(limit) + locked + pages.bloat, peak)
    else:
        needed = max(private, min(curve.enough(limit) + pages.bloat, peak))
    swapped = max(private - needed, 0) if swaps else 0
    thrashes = curve.enough(THRASHES - 1) + locked + pages.bloat
    no_limit = limits.refused(content)
    row = cast(
        "declared.Row",
        {
            "vm": vm.name,
            "trace": str(vm.trace),
            "machine": vm.machine,
            "arch": vm.arch,
            "storage": vm.storage if swaps else None,
            "memory_bytes": needed,
            "slowdown": (
                curve.slowdown(needed - pages.bloat - locked) if swaps and needed < peak else 0.0
            ),
            "peak_bytes": peak,
            "locked_bytes": locked,
            "thrashes_below_bytes": thrashes if swaps and LEAST < thrashes < peak else None,
            "advised_page_bytes": page,
            "settable_page_bytes": page,
            "mechanism": next(s.mechanism for s in transparent(vm.arch) if s.page_bytes == page),
            "gain": pages.gain,
            "gain_error": gain_error(pages.gain),
            "start_gain": start_gain(pages.chosen, pages.usual),
            "start_share": start_share(pages.usual),
            "bloat_bytes": pages.bloat,
            "swapped_bytes": swapped,
            "zram_bytes": round(swapped / ratio) if swaps and storage == "zram" else None,
            "high_bytes": limits.high(needed, peak, locked) if swaps and not no_limit else None,
            "max_bytes": None if no_limit else limits.maximum(peak),
            "no_limit": no_limit,
            "page_why": pages.why,
            "risk": limits.risk(content),
        },
    )
    notes = [*trace_warnings(enough.run), *machine_warnings(enough.run)]
    return Sized(row, notes, enough.run["trace_json_sha256"])


@dataclass(frozen=True)
class _Curve:
    """Time against memory size with 4 KiB pages.

    Attributes:
        times: nanoseconds per reference by memory size in bytes; new sizes are simulated as needed.
        start: part of each time that is spent on first touches, and does not count.
        simulate: times for a list of memory sizes.
    """

    times: dict[int, float]
    start: float
    simulate: Callable[[Sequence[int]], dict[int, float]]

    def enough(self, limit: float) -> int:
        """The smallest memory from which on the slowdown is at most ``limit``, to a hundredth of
        the memory; the smallest that was simulated if that is enough."""
        most = self.start + self._base * (1 + limit)
        pairs = reversed(list(pairwise(sorted(self.times))))
        edge = next((pair for pair in pairs if self.times[pair[0]] > most), None)
        if edge is None:
            return min(self.times)
        smaller, larger = edge
        step = (larger - smaller) / FINE
        between = {round(smaller + step * number) for number in range(1, FINE)}
        found = self.simulate(sorted(between - set(self.times)))
        self.times.update(found)
        above = larger
        for size in sorted(between, reverse=True):
            if self.times[size] > most:
                break
            above = size
        return above

    def slowdown(self, memory: int) -> float:
        """How much longer the program takes with this memory, as a share."""
        sizes = sorted(self.times)
        memory = min(max(memory, sizes[0]), sizes[-1])
        if memory not in self.times:
            self.times.update(self.simulate([memory]))
        return (self.times[memory] - self.start) / self._base - 1

    @property
    def _base(self) -> float:
        """The time that counts with the largest memory."""
        return self.times[max(self.times)] - self.start


@dataclass(frozen=True)
class _Study:
    """The paging studies of one program."""

    vm: Vm
    machine: Machine
    storage: str
    options: declared.Options
    progress: Progress

    def run(self, memory: Sequence[int], page: int | None) -> PagingResult:
        """The study at memory sizes in bytes; ``page``: one page size, or all that can be set."""
        passed = {name: value for name, value in self.options.items() if name in PASSED}
        given = {
            **passed,
            "machine": self.machine,
            "storage": [self.storage],
            "view": "machine",
            "memory": ",".join(map(str, memory)),
        }
        if page is not None:
            given |= {"page_sizes": [page], "replacement": "linux"}
        options = cast("paging_declared.Options", given)
        return paging(self.vm.trace, progress=self.progress, **options)

    def curve(self, peak: int, whole: int) -> _Curve:
        """Times by memory size.

        Args:
            peak: bytes of the peak resident set.
            whole: the same with the page cache.
        """
        grid = {max(round(peak * part), LEAST) for part in (0.01, *GRID)}
        rows = self.run(sorted({*grid, whole, 4 * (peak + whole)}), USUAL_PAGE).rows
        start = rows[-1]["total_ns"] - counted_ns(rows[-1], self.options["whole"])
        return _Curve(_times(rows), start, self._simulate)

    def _simulate(self, memory: Sequence[int]) -> dict[int, float]:
        return _times(self.run(memory, USUAL_PAGE).rows) if memory else {}


def _times(rows: Sequence[paging_declared.Row]) -> dict[int, float]:
    """Nanoseconds per reference by memory size in bytes."""
    return {row["memory_bytes"]: row["total_ns"] for row in rows}


def left_by_zram(ram: float, private: int, ratio: float) -> int:
    """Bytes that stay uncompressed where ``ram`` holds them and the others in zram.

    With x bytes left, x + (private - x) / ratio = ram.

    >>> left_by_zram(200, 300, 3)
    150

    Raises:
        NearfarError: it is too small for all of it compressed.
    """
    if ram >= private:
        return private
    left = (ram - private / ratio) / (1 - 1 / ratio) if ratio > 1 else -1
    if left <= 0:
        raise NearfarError(
            f"--ram: {units.size(round(ram))} cannot hold {units.size(private)} even compressed "
            f"{ratio:g} to 1; give more"
        )
    return round(left)


def choose(rows: Sequence[paging_declared.Row], *, whole: bool, arch: str) -> Pages:
    """Choose a page size from the rows of a study with enough memory.

    Args:
        rows: a row for each page size.
        whole: decide by the whole run, with first touches.
        arch: the architecture.
    """
    offered = {size.page_bytes for size in transparent(arch)}
    by_page = {row["page_bytes"]: row for row in rows if row["page_bytes"] in offered}
    usual = by_page.get(USUAL_PAGE)
    if usual is None:
        raise NearfarError("size: the program touches fewer than 8 pages of 4 KiB; run more of it")

    choice = choose_page(list(by_page.values()), whole=whole)
    gain = choice.gain or 0.0
    return Pages(choice.row, usual, gain, _why(choice, gain))


def _why(choice: PageChoice, gain: float) -> str:
    """The choice in words."""
    if choice.page_bytes != USUAL_PAGE:
        extra = _private(choice.row) - (0 if choice.usual is None else _private(choice.usual))
        why = f"{units.size(choice.page_bytes)}: {saving(gain)} less time{choice.when} than 4 KiB"
        return why + (f", and {units.size(extra)} more memory" if extra > 0 else "")
    if choice.refusal is not None:
        return f"4 KiB: {choice.refusal}"
    best = choice.fastest["page_bytes"]
    if choice.gains[best] >= LEAST_SHOWN:
        return (
            f"4 KiB: the most that another size saves{choice.when}, "
            f"{units.percent(choice.gains[best])} with {units.size(best)}, is within the error"
        )
    return f"4 KiB: no other size that can be set takes less time{choice.when}"


def mapped_files(content: Content) -> int:
    """Bytes of mapped files that the program touches: an upper bound, without the page cache."""
    listed = content["regions"]
    pages = sum(row["pages"] for row in listed if row["name"].startswith("/"))
    return pages * USUAL_PAGE


def _resident(result: PagingResult) -> int:
    """The peak resident set with 4 KiB pages and the page cache."""
    run = result.run
    return run.get("peak_resident_bytes") or run.get("footprint_bytes") or 0
