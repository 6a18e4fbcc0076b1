"""Models of devices below memory: a program's time by memory size, and prices.

The CXL-SSD is that of SkyByte: Zhang and others, *SkyByte: Architecting an Efficient
Memory-Semantic CXL-based SSD with OS and Hardware Co-design*, HPCA 2025 (arXiv 2501.10682). Its
constants are those of the artifact's simulator (github.com/HieronZhang/SkyByte-Artifact).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from nearfar import machine as machines
from nearfar.declared import paging as paging_declared
from nearfar.devices.options import CXL_SSD, DRAM_SSD
from nearfar.errors import NearfarError
from nearfar.machine import Machine
from nearfar.page_choice import counted_ns
from nearfar.paging_findings import USUAL_PAGE
from nearfar.size.swap import ZRAM
from nearfar.sizes import parse_time

FAULT: Final = "page fault"
LOAD: Final = "load"
#: Kinds of storage that the processor accesses with loads, without page faults.
_LOADED: Final = ("cxl", "pmem")
#: The storage whose bandwidth the CXL-SSD is assumed to have.
CXL_MEMORY: Final = "cxl"
#: The machine with the DRAM-interface SSD (UMD, ``papers/002``).
_UMD: Final = "umd"
_LINE: Final = 64

#: DRAM of the CXL-SSD, bytes: 512 MiB (ssd_cache_size_byte) less an eighth for the write log
#: (write_log_ratio 0.125).
_CACHE: Final = 448 << 20
#: Time of a load that hits the device's DRAM: 46 ns for DRAM, 40 for CXL and 72 for the index.
_HIT_NS: Final = 158
#: Time to read a page from flash (NAND_READ_LATENCY, the flash of the main results).
FLASH_READ_NS: Final = 3_000
#: The CXL-SSD requests a context switch if it expects a longer delay (cs_threshold).
_SWITCH_ABOVE_NS: Final = 2_000
#: Duration of this context switch.
SWITCH_NS: Final = 1_300

Row = paging_declared.Row


@dataclass(frozen=True)
class Pages:
    """Rows of the paging study with 4 KiB pages.

    Attributes:
        rows: by memory size and storage.
        peak: the largest memory size, which evicts nothing.
    """

    rows: Mapping[int, Mapping[str, Row]]
    peak: int

    def time(self, memory: int, storage: str) -> float:
        """Nanoseconds per reference, without first touches."""
        return counted_ns(self.rows[min(memory, self.peak)][storage], whole=False)

    def reads(self, memory: int) -> int:
        """Pages that are read again because they were evicted."""
        row = self.any_row(memory)
        return row["swap_ins"] + row["file_rereads"]

    def any_row(self, memory: int) -> Row:
        """The row of an arbitrary storage, for values that do not depend on storage."""
        return next(iter(self.rows[min(memory, self.peak)].values()))


@dataclass(frozen=True)
class Device:
    """A device below memory.

    Attributes:
        access: :data:`FAULT` or :data:`LOAD`.
        read_ns: time to load a page. This and the next three are only for :data:`LOAD`, else 0.
        flash_ns: additional time if the page is not in the device's DRAM.
        write_ns: time to evict a dirty page.
        cache: DRAM of the device, bytes.
        ratio: compression ratio of zram; None for other devices.
    """

    name: str
    access: str = FAULT
    read_ns: float = 0.0
    flash_ns: float = 0.0
    write_ns: float = 0.0
    cache: int = 0
    ratio: float | None = None

    def time(self, pages: Pages, memory: int) -> float:
        """Nanoseconds per reference with ``memory`` bytes for pages, without first touches."""
        if self.access == FAULT:
            return pages.time(memory, self.name)
        unevicted = pages.any_row(pages.peak)
        device_ns = (
            pages.reads(memory) * self.read_ns
            + pages.reads(memory + self.cache) * self.flash_ns
            + pages.any_row(memory)["dirty_evictions"] * self.write_ns
        )
        return counted_ns(unevicted, whole=False) + device_ns / unevicted["references"]

    def needed(self, memory: int, peak: int) -> int:
        """DRAM for ``memory`` bytes of pages and, with zram, for the other pages, compressed."""
        return memory if self.ratio is None else memory + round((peak - memory) / self.ratio)

    def left(self, memory: int, peak: int) -> int | None:
        """``memory`` less the compressed pages of zram; None if these would need all of it."""
        if self.ratio is None or memory >= peak:
            return memory
        taken = peak / self.ratio
        return round((memory - taken) * self.ratio / (self.ratio - 1)) if memory > taken else None


def model(name: str, machine: Machine, busy: int, ratio: float) -> Device:
    """The model of a device.

    Args:
        name: a storage of the machine, :data:`CXL_SSD` or :data:`DRAM_SSD`.
        machine: the host.
        busy: number of busy threads; with several, another one runs during a long wait.
        ratio: compression ratio of zram.
    """
    if name == CXL_SSD:
        line, page = machine.io_ns(CXL_MEMORY, [_LINE, USUAL_PAGE])
        flash_ns = FLASH_READ_NS
        if busy > 1 and flash_ns > _SWITCH_ABOVE_NS:
            flash_ns = min(flash_ns, SWITCH_NS)
        # A hit, and the transfer of the page's other lines.
        return Device(name, LOAD, _HIT_NS + page - line, flash_ns, cache=_CACHE)
    if name == DRAM_SSD:
        described = machines.load(_UMD).to_dict()
        flash, cost = described["flash"], described["cost"]
        read, program = (parse_time(flash[key]["value"], key) for key in ("read", "program"))
        switch = sum(parse_time(cost[key]["value"], key) for key in ("exception", "context_switch"))
        return Device(name, LOAD, read, write_ns=min(program, switch) if busy > 1 else program)
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
            NearfarError: it is not a list of prices, or a name is neither ``dram`` nor a device.
        """
        prices: dict[str, float] = {}
        known = ["dram", *devices]
        for part in text.split(",") if text is not None else ():
            name, _, price = (word.strip() for word in part.partition("="))
            if name not in known:
                raise NearfarError(f"--cost: {name[:40]!r} is not one of {', '.join(known)}")
            try:
                prices[name] = float(price)
            except ValueError:
                prices[name] = -1.0
            if not 0 <= prices[name] < float("inf"):
                raise NearfarError(f"--cost: {part[:40]!r}: write NAME=PRICE, such as dram=4")
        return cls(prices)

    def cost(self, device: Device, memory: int, rest: int) -> float | None:
        """The price of ``memory`` bytes of DRAM and ``rest`` of the device; None without prices."""
        dram, price = self.of.get("dram"), self.of.get(device.name)
        if device.ratio is not None:  # zram: `memory` includes its compressed pages
            price = 0.0
        if dram is None or price is None:
            return None
        return (memory * dram + rest * price) / (1 << 30)
