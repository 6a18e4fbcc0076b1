"""Lists of sizes as people write them: ``512,1K,...,2M`` and ``10%,...,100%``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from nearfar.errors import NearfarError

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?", re.IGNORECASE)
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")
#: Most items that ``...`` may stand for.
MOST = 4096


@dataclass(frozen=True)
class Memory:
    """A memory size: a fraction of the footprint, or bytes."""

    value: float
    is_fraction: bool


def bytes_of(text: str) -> int | None:
    """Bytes of ``4096``, ``4K``, ``2MiB`` (powers of 1024); None unless whole, from 1 to 2^60."""
    found = _BYTES.fullmatch(text.strip())
    if found:
        value = float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ")
        if 1 <= value <= 2**60 and value == int(value):
            return int(value)
    return None


def parse_bytes(text: str, flag: str) -> int:
    """Bytes as :func:`bytes_of` reads them.

    Raises:
        NearfarError: naming ``flag``, if it is not a whole number of bytes from 1 to 2^60.
    """
    size = bytes_of(text)
    if size is None:
        raise NearfarError(
            f"{flag}: {text.strip()[:40]!r} is not a size; "
            "write a size above 0 such as 4096, 4K or 2M"
        )
    return size


def parse_page_sizes(text: str) -> list[int]:
    """Page sizes of a list in which ``...`` stands for the doublings between its neighbours.

    >>> parse_page_sizes("512,1K,...,8K")
    [512, 1024, 2048, 4096, 8192]
    """
    flag = "--page-sizes"
    sizes: list[int] = []
    fill = False
    for item in _items(text, flag):
        if item == "...":
            fill = True
            continue
        size = parse_bytes(item, flag)
        if fill:
            while sizes[-1] * 2 < size:
                sizes.append(sizes[-1] * 2)
            fill = False
        sizes.append(size)
    return sizes


def parse_memory(text: str) -> list[Memory]:
    """Memory sizes, each ``10%`` of the footprint or bytes; ``...`` goes on in equal steps.

    The step is the difference of the two sizes before ``...``, or the one size before it.

    >>> [m.value for m in parse_memory("10%,...,50%")]
    [0.1, 0.2, 0.3, 0.4, 0.5]
    """
    flag = "--memory"
    sizes: list[Memory] = []
    fill = False
    for item in _items(text, flag):
        if item == "...":
            fill = True
            continue
        size = _memory(item, flag)
        if fill:
            sizes.extend(_steps(sizes, size, flag))
            fill = False
        sizes.append(size)
    return sizes


def _items(text: str, flag: str) -> list[str]:
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise NearfarError(f"{flag}: {text[:60]!r} has an empty item; separate sizes by one comma")
    if items[0] == "..." or items[-1] == "..." or ",...,...," in ",".join(items):
        raise NearfarError(f"{flag}: `...` needs a size on both sides, such as 4K,...,2M")
    return items


def _memory(text: str, flag: str) -> Memory:
    found = _PERCENT.fullmatch(text)
    if found is None:
        return Memory(parse_bytes(text, flag), False)
    percent = float(found[1])
    if not 0 < percent <= 1e8:
        raise NearfarError(f"{flag}: {text[:40]!r} is not above 0 %; write for example 10%")
    return Memory(percent / 100, True)


def _steps(before: list[Memory], last: Memory, flag: str) -> list[Memory]:
    first = before[-1]
    same_kind = [m for m in before[-2:] if m.is_fraction == last.is_fraction]
    if first.is_fraction != last.is_fraction:
        raise NearfarError(f"{flag}: `...` goes from bytes to bytes or from % to %")
    # In hundredths of a percent or bytes, so that 10 % steps end on 100 % exactly.
    unit = 1e-4 if last.is_fraction else 1
    start, stop = (round(m.value / unit) for m in (first, last))
    step = start - round(same_kind[0].value / unit) if len(same_kind) == 2 else start
    if step <= 0 or stop <= start or math.ceil((stop - start) / step) > MOST:
        raise NearfarError(f"{flag}: `...` must rise in at most {MOST} steps, as in 10%,...,100%")
    between = range(start + step, stop, step)
    return [Memory(round(value * unit, 6), last.is_fraction) for value in between]


_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s)")


def parse_time(text: str, flag: str) -> int:
    """Nanoseconds of ``50us``, ``0ns``, ``1.5ms``.

    Raises:
        NearfarError: naming ``flag``, if it is not a whole number of nanoseconds up to 1000 s.
    """
    found = _TIME.fullmatch(text.strip())
    if found:
        value = float(found[1]) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[found[2]]
        if value <= 1e12 and value == int(value):
            return int(value)
    raise NearfarError(
        f"{flag}: {text.strip()[:40]!r} is not a time in whole nanoseconds; write for example 50us"
    )


def parse_shares(text: str, flag: str, count: int) -> list[float]:
    """``count`` shares, each ``60%`` or ``0.6``.

    Raises:
        NearfarError: naming ``flag``, if there are more or fewer or one is not from 0 to 1.
    """
    example = ",".join(["50%"] * count)
    shares = []
    for item in text.split(","):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(\s*%)?", item.strip())
        share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
        if not 0 <= share <= 1:
            raise NearfarError(
                f"{flag}: {item.strip()[:40]!r} is not a share from 0 to 100 %; "
                f"write for example {example}"
            )
        shares.append(share)
    if len(shares) != count:
        raise NearfarError(
            f"{flag}: {len(shares)} shares, not {count}; write for example {example}"
        )
    return shares
