"""Properties that processors do not report, from vendor documents, by family and model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Documented:
    """A microarchitecture.

    Attributes:
        guide: the source of the values.
        window: entries of the reorder buffer.
        coalesced: maximum bytes of contiguous small pages that share a TLB entry, if they do.
        second: entries and ways of the second-level data TLB, if ``cpuid`` cannot encode them.
        upper_directories: entries of the cache of upper page-table levels, if documented.
    """

    guide: str
    window: int
    coalesced: int | None = None
    second: tuple[int, int] | None = None
    upper_directories: int | None = None


def _zen(name: str, number: int, window: int, second: tuple[int, int]) -> Documented:
    guide = f"AMD, Software Optimization Guide for the {name} Microarchitecture ({number})"
    return Documented(guide, window, coalesced=16384, second=second, upper_directories=64)


_INTEL: Final = "Intel 64 and IA-32 Architectures Optimization Reference Manual (248966)"

_ZEN: Final = _zen("Zen", 55723, 192, (1536, 12))
_ZEN_2: Final = _zen("Zen 2", 56305, 224, (2048, 16))
_ZEN_3: Final = _zen("Zen 3", 56665, 256, (2048, 16))
_ZEN_4: Final = _zen("Zen 4", 57647, 320, (3072, 24))
_ZEN_5: Final = _zen("Zen 5", 58455, 448, (4096, 16))
_SKYLAKE: Final = Documented(f"{_INTEL}, Skylake", 224, second=(1536, 12))
_SUNNY_COVE: Final = Documented(f"{_INTEL}, Sunny Cove", 352)
_GOLDEN_COVE: Final = Documented(f"{_INTEL}, Golden Cove", 512)

#: Vendor, family, models, microarchitecture.
_TABLE: Final[tuple[tuple[str, int, tuple[range, ...], Documented], ...]] = (
    ("AuthenticAMD", 0x17, (range(0x30),), _ZEN),
    ("AuthenticAMD", 0x17, (range(0x30, 0x100),), _ZEN_2),
    ("AuthenticAMD", 0x19, (range(0x10), range(0x20, 0x60)), _ZEN_3),
    ("AuthenticAMD", 0x19, (range(0x10, 0x20), range(0x60, 0x80), range(0xA0, 0xB0)), _ZEN_4),
    ("AuthenticAMD", 0x1A, (range(0x80),), _ZEN_5),
    ("GenuineIntel", 6, tuple(range(m, m + 1) for m in (0x4E, 0x5E, 0x55, 0x8E, 0x9E)), _SKYLAKE),
    ("GenuineIntel", 6, tuple(range(m, m + 1) for m in (0x6A, 0x6C, 0x7D, 0x7E)), _SUNNY_COVE),
    ("GenuineIntel", 6, tuple(range(m, m + 1) for m in (0x8F, 0x97, 0x9A)), _GOLDEN_COVE),
)


def documented(vendor: str, family: int, model: int) -> Documented | None:
    """The microarchitecture of a processor; None if it is not in the table."""
    for known_vendor, known_family, models, entry in _TABLE:
        same_family = (known_vendor, known_family) == (vendor, family)
        if same_family and any(model in numbers for numbers in models):
            return entry
    return None
