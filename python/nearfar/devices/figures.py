"""The CXL-SSD: figures of SkyByte, and where each is from.

SkyByte: Zhang and others, *SkyByte: Architecting an Efficient Memory-Semantic CXL-based SSD with OS
and Hardware Co-design*, HPCA 2025 (arXiv 2501.10682). The figures are those of its artifact
(github.com/HieronZhang/SkyByte-Artifact), whose simulator made the published results.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MIB: Final = 1 << 20


@dataclass(frozen=True)
class Figure:
    """A number, its unit and its source."""

    value: float
    unit: str
    source: str


#: DRAM of the device, without the write log.
CACHE: Final = Figure(
    448 * MIB, "bytes", "512 MiB of DRAM (ssd_cache_size_byte) less the write log"
)
#: Part of its DRAM that holds written lines until they are merged into pages.
WRITE_LOG: Final = Figure(64 * MIB, "bytes", "an eighth of the DRAM (write_log_ratio 0.125)")
#: A load that the device's DRAM holds.
HIT: Final = Figure(158, "ns", "46 ns DRAM, 40 ns CXL and 72 ns index, as its simulator adds them")
#: A page that only flash holds.
FLASH_READ: Final = Figure(3_000, "ns", "NAND_READ_LATENCY, the flash of its main results")
#: The device asks for a context switch if it expects a longer delay.
THRESHOLD: Final = Figure(2_000, "ns", "cs_threshold of its configuration files")
#: Such a switch to another thread.
SWITCH: Final = Figure(1_300, "ns", "cost of a switch in its simulator")
