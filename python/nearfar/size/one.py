"""The memory and the page size that one program needs.

The trace is simulated with ``--view machine``: first with enough memory at every page size, to
choose the page size; then with 4 KiB pages at a grid of memory sizes, with Linux's replacement
(``linux``), which keeps reused pages and evicts streamed ones; then on a finer grid around the
answer. Memory that the page size adds is added to the result, because under pressure the kernel
splits larger pages.

Of a trace captured with ``--sample``, only 4 KiB pages are simulated. Waiting times for cache and
TLB misses are then lower bounds, and faults are taken at the upper end of their interval. Both make
faults weigh more, so slowdowns and the advised memory are upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, cast

from nearfar import units
from nearfar.advise.architectures import transparent
from nearfar.advise.fleet import Vm
from nearfar.declared import paging as paging_declared
from nearfar.errors import NearfarError
from nearfar.gain_error import gain_error, saving
from nearfar.info import Content, info
from nearfar.memory_curve import ENOUGH, THRASHES, Memory, MemoryCurve, allowed_slowdown
from nearfar.page_choice import (
    LEAST_SHOWN,
    USUAL_PAGE,
    PageChoice,
    counted_ns,
    needed_kernel,
    start_gain,
    start_share,
)
from nearfar.page_choice import choose as choose_page
from nearfar.page_choice import private_bytes as _private
from nearfar.paging import PagingResult, machine_warnings, paging, trace_warnings
from nearfar.size import limits
from nearfar.size.options import PASSED
from nearfar.size.swap import NONE, ZRAM
from nearfar.sizes import parse_memory
from nearfar.thp import thp

if TYPE_CHECKING:
    from nearfar.declared import size as declared
    from nearfar.declared import thp as thp_declared
    from nearfar.machine import Machine

#: Memory sizes of the first grid, as parts of the peak resident set.
GRID: Final = tuple(part / 10 for part in range(1, 11))
#: Passes over a trace: its summary, page sizes, memory sizes, and finer steps.
PASSES: Final = 4
#: Smallest memory to simulate.
LEAST: Final = 8 * USUAL_PAGE
#: Steps between two memory sizes of the grid where the answer lies.
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
        gain: share of the time (:func:`counted_ns`) that the page size saves.
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
    # ``sample``: a trace of ``capture --sample`` is read as well.
    content = info(vm.trace, heatmap=False, sample=True, reuse=False, progress=progress).content
    sample = content["source"].get("sample")
    if sample and options["thp"]:
        raise NearfarError(
            f"--thp: {vm.trace} holds a sample of the pages, but this command needs every "
            f"reference; "
            "leave it out, or capture without --sample"
        )
    swaps = vm.storage != NONE
    zram = vm.storage == ZRAM
    # Without swap, the study still needs a storage, for pages of files: the machine's first.
    storage = vm.storage if swaps else next(iter(machine.storages))
    study = _Study(vm, machine, storage, options, progress)
    enough = study.run([ENOUGH])
    pages = choose(enough.rows, whole=options["whole"], arch=vm.arch)
    if sample:
        pages = replace(
            pages, why="4 KiB: a sample of 4 KiB pages does not show what larger pages save"
        )
    page, private = pages.chosen["page_bytes"], _private(pages.chosen)
    resident = content["peak_resident_bytes"] or content["footprint_bytes"]
    # The smaller of two upper bounds: private memory and mapped files (written file pages count
    # twice), and the resident set (with the page cache).
    usual = _private(pages.usual)
    usual_peak = max(usual, min(usual + mapped_files(content), resident))
    peak = usual_peak + pages.bloat
    limit = allowed_slowdown(enough.run, paging_declared.OPTIONS)
    curve = study.curve(usual_peak, resident)
    curve.refine([limit, THRASHES - 1])
    locked = content["locked_bytes"]
    # The curve has neither locked memory nor the memory that the page size adds.
    not_in_curve = locked + pages.bloat
    ratio = float(options["zram_ratio"]) if zram else math.inf
    if vm.memory:
        (ram,) = parse_memory(vm.memory)
        given = round(ram.value * peak if ram.is_fraction else ram.value)
        try:
            needed = within(given, peak, private, vm.storage, ratio)
        except NearfarError as error:
            raise NearfarError(f"{vm.name}: {error}") from None
    else:
        needed = max(min(curve.enough(limit) + not_in_curve, peak), 0 if swaps else private)
    swapped = max(private - needed, 0) if swaps else 0
    thrashes = curve.enough(THRASHES - 1) + not_in_curve
    if not swaps or not LEAST < thrashes < peak:
        thrashes = 0
    no_limit = limits.refused(content)
    slower = curve.slowdown(needed - not_in_curve) if needed < peak else 0.0
    if vm.memory and slower >= THRASHES - 1:
        raise NearfarError(
            f"{vm.name}: with {units.size(given)} it would take {1 + slower:.3g} times as long; "
            f"give {units.size(thrashes or needed)} or more"
        )
    high = limits.high(max(needed, thrashes), peak, locked) if swaps and not no_limit else None
    row: declared.Row = {
        "vm": vm.name,
        "trace": str(vm.trace),
        "machine": vm.machine,
        "arch": vm.arch,
        "storage": vm.storage if swaps else None,
        "memory_bytes": needed,
        "slowdown": slower,
        "peak_bytes": peak,
        "locked_bytes": locked,
        "thrashes_below_bytes": thrashes or None,
        "advised_page_bytes": page,
        "settable_page_bytes": page,
        "mechanism": next(s.mechanism for s in transparent(vm.arch) if s.page_bytes == page),
        "gain": pages.gain,
        "gain_error": gain_error(pages.gain),
        "start_gain": start_gain(pages.chosen, pages.usual),
        "start_share": start_share(pages.usual),
        "bloat_bytes": pages.bloat,
        "swapped_bytes": swapped,
        "zram_bytes": round(swapped / ratio) if zram else None,
        "high_bytes": high,
        "max_bytes": None if no_limit else limits.maximum(peak),
        "no_limit": no_limit,
        "sampled_pages": sample["rate"] if sample else None,
        "page_why": pages.why,
        "thp_why": study.setting() if options["thp"] else None,
        "risk": limits.risk(content),
    }
    notes = [*trace_warnings(enough.run), *machine_warnings(enough.run)]
    return Sized(row, notes, enough.run["trace_json_sha256"])


@dataclass(frozen=True)
class _Curve:
    """Time against memory size with 4 KiB pages.

    Attributes:
        times: nanoseconds per reference by memory size in bytes, without first touches unless
            ``whole``.
        simulate: times for a list of memory sizes.
    """

    times: dict[int, float]
    simulate: Callable[[Sequence[int]], dict[int, float]]

    def enough(self, limit: float) -> int:
        """The smallest memory from which on the slowdown is at most ``limit``."""
        times = {Memory(size, fraction=None): time for size, time in self.times.items()}
        found = MemoryCurve.of(name="", times=times).enough(limit)
        assert found is not None  # the largest memory has no slowdown
        return found.bytes

    def refine(self, limits: Sequence[float]) -> None:
        """For each limit, add times at tenths of the step that ends at its :meth:`enough`."""
        sizes = sorted(self.times)
        added: set[int] = set()
        for size in map(self.enough, limits):
            below = sizes[max(sizes.index(size) - 1, 0)]
            added |= {round(below + (size - below) * step / FINE) for step in range(1, FINE)}
        self._add(sorted(added - set(sizes)))

    def slowdown(self, memory: int) -> float:
        """How much longer the program takes with this memory, as a share."""
        sizes = sorted(self.times)
        memory = min(max(memory, sizes[0]), sizes[-1])
        self._add([memory] if memory not in self.times else [])
        return self.times[memory] / self.times[sizes[-1]] - 1

    def _add(self, sizes: Sequence[int]) -> None:
        self.times.update(self.simulate(sizes) if sizes else {})


@dataclass(frozen=True)
class _Study:
    """The paging studies of one program, with swap on ``storage``."""

    vm: Vm
    machine: Machine
    storage: str
    options: declared.Options
    progress: Progress

    def run(self, memory: Sequence[int], **more: object) -> PagingResult:
        """The study at memory sizes in bytes, with more options of ``nearfar paging``."""
        passed = {name: value for name, value in self.options.items() if name in PASSED}
        given = {
            **passed,
            "machine": self.machine,
            "storage": [self.storage],
            "view": "machine",
            "memory": ",".join(map(str, memory)),
            **more,
        }
        options = cast("paging_declared.Options", given)
        return paging(self.vm.trace, progress=self.progress, **options)

    def curve(self, peak: int, resident: int) -> _Curve:
        """Times by memory size; the largest evicts nothing.

        Args:
            peak: bytes of private memory and mapped files at the peak.
            resident: bytes of the peak resident set, with the page cache.
        """
        # 1 %: so that :meth:`_Curve.refine` has a step below the grid.
        grid = {max(round(peak * part), LEAST) for part in (0.01, *GRID)}
        rows = self._with_small_pages(sorted({*grid, resident, 4 * (peak + resident)}))

        def times(rows: Sequence[paging_declared.Row]) -> dict[int, float]:
            whole = self.options["whole"]
            return {row["memory_bytes"]: _counted_ns(row, whole) for row in rows}

        return _Curve(times(rows), lambda sizes: times(self._with_small_pages(sizes)))

    def setting(self) -> str:
        """The setting of huge pages to use, and why."""
        options: thp_declared.Options = {
            "machine": self.machine,
            "threads": self.options["threads"],
        }
        return thp(self.vm.trace, progress=self.progress, **options).sentence

    def _with_small_pages(self, memory: Sequence[int]) -> list[paging_declared.Row]:
        return self.run(memory, page_sizes=[USUAL_PAGE], replacement="linux").rows


def _counted_ns(row: paging_declared.Row, whole: bool) -> float:
    """The row's :func:`counted_ns`; of a sample, with faults at the upper end of their interval."""
    high = row["total_ns_high"]
    return counted_ns(row, whole) + (0.0 if high is None else high - row["total_ns"])


def within(ram: int, peak: int, private: int, swap: str, ratio: float) -> int:
    """Bytes of uncompressed memory that the program has, of ``ram`` bytes.

    If private memory does not fit, zram takes a part of ``ram``: with x bytes uncompressed,
    x + (private - x) / ratio = ram.

    Args:
        ram: bytes.
        peak: bytes of private memory and mapped files.
        private: bytes of private memory.
        swap: the swap device.
        ratio: compression of zram; infinite for another device.

    >>> within(200, 400, 300, "zram", 3)
    150

    Raises:
        NearfarError: private memory does not fit, even compressed.
    """
    if ram >= private:
        return min(ram, peak)
    has = f"{units.size(ram)} cannot hold {units.size(private)} of private memory"
    if swap == NONE:
        raise NearfarError(f"{has} without swap; give more, or swap")
    left = (ram - private / ratio) / (1 - 1 / ratio) if ratio > 1 else -1
    if left <= 0:
        raise NearfarError(f"{has} even compressed {ratio:g} to 1; give more")
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
        why += f", and {units.size(extra)} more memory" if extra > 0 else ""
        needs = needed_kernel(choice.row)
        return why if needs is None else f"{why}; it {needs}"
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
