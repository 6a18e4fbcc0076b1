"""What a device costs: the time of a program by its memory, and prices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from nearfar import machine as machines
from nearfar.declared import paging as paging_declared
from nearfar.devices import figures
from nearfar.devices.options import CXL_SSD, DRAM_SSD
from nearfar.errors import NearfarError
from nearfar.machine import Machine
from nearfar.page_choice import counted_ns
from nearfar.paging_findings import USUAL_PAGE
from nearfar.size.swap import ZRAM
from nearfar.sizes import parse_time

FAULT: Final = "page fault"
LOAD: Final = "load"
#: Kinds of storage that the processor loads from.
_LOADED: Final = ("cxl", "pmem")
#: The storage that has the bandwidth of the CXL-SSD.
CXL_MEMORY: Final = "cxl"
#: The machine with the DRAM-interface SSD.
_UMD: Final = "umd"
_LINE: Final = 64

Row = paging_declared.Row


@dataclass(frozen=True)
class Pages:
    """What the paging study found with 4 KiB pages.

    Attributes:
        rows: its rows, by memory size and storage.
        peak: the largest memory size, which evicts nothing.
    """

    rows: Mapping[int, Mapping[str, Row]]
    peak: int

    def row(self, memory: int, storage: str) -> Row:
        """The row of a memory size."""
        return self.rows[min(memory, self.peak)][storage]

    def time(self, memory: int, storage: str) -> float:
        """Nanoseconds per reference once memory is filled."""
        return counted_ns(self.row(memory, storage), whole=False)

    def reads(self, memory: int) -> int:
        """Pages that are read again because they were evicted."""
        row = next(iter(self.rows[min(memory, self.peak)].values()))
        return row["swap_ins"] + row["file_rereads"]

    def dirty(self, memory: int) -> int:
        """Evictions of written pages."""
        return next(iter(self.rows[min(memory, self.peak)].values()))["dirty_evictions"]


@dataclass(frozen=True)
class Device:
    """A device below memory.

    Attributes:
        name: its name.
        access: :data:`FAULT` or :data:`LOAD`.
        read_ns: time of a load of a page.
        flash_ns: what is added for a page that only its flash holds.
        write_ns: time of an eviction of a written page.
        cache: bytes of its own DRAM.
        ratio: of zram: uncompressed bytes for each byte of memory that it takes.
    """

    name: str
    access: str = FAULT
    read_ns: float = 0.0
    flash_ns: float = 0.0
    write_ns: float = 0.0
    cache: int = 0
    ratio: float | None = None

    def time(self, pages: Pages, memory: int) -> float:
        """Nanoseconds per reference with so much memory for pages, without first touches."""
        if self.access == FAULT:
            return pages.time(memory, self.name)
        any_storage = next(iter(pages.rows[pages.peak]))
        most = pages.row(pages.peak, any_storage)
        spent = (
            pages.reads(memory) * self.read_ns
            + pages.reads(memory + self.cache) * self.flash_ns
            + pages.dirty(memory) * self.write_ns
        )
        return pages.time(pages.peak, any_storage) + spent / most["references"]

    def with_device(self, memory: int, peak: int) -> int:
        """Memory for pages, and what the others take of memory on the device."""
        return memory if self.ratio is None else memory + round((peak - memory) / self.ratio)

    def left(self, memory: int, peak: int) -> int | None:
        """Memory for pages, out of ``memory`` for both; None if the device cannot hold the rest."""
        if self.ratio is None or memory >= peak:
            return memory
        taken = peak / self.ratio
        return round((memory - taken) * self.ratio / (self.ratio - 1)) if memory > taken else None


def model(name: str, machine: Machine, busy: int, ratio: float) -> Device:
    """The model of a device.

    Args:
        name: a storage of the machine, :data:`CXL_SSD` or :data:`DRAM_SSD`.
        machine: the host.
        busy: threads that are busy; with several, a long wait runs another one.
        ratio: of zram.
    """
    if name == CXL_SSD:
        line, page = machine.io_ns(CXL_MEMORY, [_LINE, USUAL_PAGE])
        flash = figures.FLASH_READ.value
        if busy > 1 and flash > figures.THRESHOLD.value:
            flash = min(flash, figures.SWITCH.value)
        hit = figures.HIT.value + page - line
        return Device(name, LOAD, hit, flash, cache=int(figures.CACHE.value))
    if name == DRAM_SSD:
        described = machines.load(_UMD).to_dict()
        flash, cost = described["flash"], described["cost"]
        read, program = (parse_time(flash[key]["value"], key) for key in ("read", "program"))
        passed = sum(parse_time(cost[key]["value"], key) for key in ("exception", "context_switch"))
        return Device(name, LOAD, read, write_ns=min(program, passed) if busy > 1 else program)
    if machine.storages[name] in _LOADED:
        (page,) = machine.io_ns(name, [USUAL_PAGE])
        return Device(name, LOAD, page)
    return Device(name, ratio=ratio if name == ZRAM else None)


@dataclass(frozen=True)
class Prices:
    """Prices of a GiB, by device; ``dram`` is the host's memory."""

    of: Mapping[str, float]

    @classmethod
    def parse(cls, text: str | None, devices: Collection[str]) -> Prices:
        """Parse ``--cost``.

        Raises:
            NearfarError: it is not a list of prices, or names no device of the table.
        """
        prices: dict[str, float] = {}
        for part in (text or "").split(",") if text is not None else ():
            name, _, price = (word.strip() for word in part.partition("="))
            known = ["dram", *devices]
            if name not in known:
                raise NearfarError(f"--cost: {name[:40]!r} is none of {', '.join(known)}")
            try:
                prices[name] = float(price)
            except ValueError:
                prices[name] = -1.0
            if not 0 <= prices[name] < float("inf"):
                raise NearfarError(f"--cost: {part[:40]!r}: write NAME=PRICE, such as dram=4")
        return cls(prices)

    def cost(self, device: Device, memory: int, rest: int) -> float | None:
        """The price of memory and of the rest on a device; None without prices."""
        dram, price = self.of.get("dram"), self.of.get(device.name)
        if device.ratio is not None:
            price = 0.0
        if dram is None or price is None:
            return None
        return (memory * dram + rest * price) / (1 << 30)
