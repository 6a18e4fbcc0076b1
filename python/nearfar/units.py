"""Numbers and names for people.

Texts are ASCII, for any locale; HTML pages replace ``us`` by its proper sign. Inputs are in the
base unit (bytes, nanoseconds, shares of one).
"""

from __future__ import annotations

import math
import re

# No-break spaces and the word joiner: harmless, but not "printable" to Python.
_SPACES = "\u00a0\u202f\u2060"
# A space between groups of digits, or between a number and its unit.
_WITHIN = re.compile(r"(?<=\d) (?=(?:\d{3}(?!\d)|(?:%|ns|us|ms|s|[KMGTP]?i?B)(?:\W|$)))")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME = (("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9))


def digits(value: float, figures: int = 3) -> str:
    """``value`` to ``figures`` significant figures; an exponent below 0.0001 and from 10^9 on."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    text = f"{value:.{figures}g}"
    if 1e-4 <= abs(value) < 1e9:
        return f"{float(text):.9f}".rstrip("0").rstrip(".") if "e" in text else text
    mantissa, _, exponent = f"{value:.{figures - 1}e}".partition("e")
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"{mantissa}e{int(exponent)}"


def size(count: float) -> str:
    """Bytes with a binary unit: ``4 KiB``, ``1.5 MiB``."""
    value = float(count)
    for unit in _BINARY[:-1]:
        if abs(value) < 1024:
            return f"{_short(value)} {unit}"
        value /= 1024
    return f"{_short(value)} {_BINARY[-1]}"


def _short(value: float) -> str:
    return str(int(value)) if value == int(value) else digits(value)


def duration(nanoseconds: float) -> str:
    """Nanoseconds with the unit that keeps the number short: ``85.2 ns``, ``1.27 us``."""
    unit, factor = _TIME[0]
    for name, scale in _TIME:
        # 999.6 us rounds to 1 ms.
        if abs(nanoseconds) >= scale * 0.9995:
            unit, factor = name, scale
    return f"{digits(nanoseconds / factor)} {unit}"


def rate(value: float) -> str:
    """A share of references, three figures: ``0.0123``, ``1.5e-7``."""
    return digits(value)


def percent(value: float) -> str:
    """A share of one in percent, with one decimal below 10 % unless it is whole."""
    scaled = value * 100
    if scaled == round(scaled) or abs(scaled) >= 9.95:
        return f"{scaled:.0f} %"
    # Adding 0.0 avoids "-0.0".
    return f"{round(scaled, 1) + 0.0:.1f} %"


def count(value: float) -> str:
    """A whole number in groups of three digits: ``31 300 000``."""
    return f"{int(value):,}".replace(",", " ")


def joined(text: str, by: str) -> str:
    """``text`` with ``by`` instead of spaces in numbers, and between numbers and units."""
    return _WITHIN.sub(by, text)


def clean(text: object) -> str:
    """``text`` on one line, with control characters escaped.

    Names come from traces and file systems, and may have terminal escape sequences.
    """
    return "".join(
        c
        if c.isprintable() or c in _SPACES
        else c.encode("unicode_escape", "backslashreplace").decode("ascii")
        for c in str(text)
    )


_FRAME = str.maketrans("─│┌┐└┘├┤┬┴┼╶╴…", "-|++++||+++--~")


def ascii_frame(text: str) -> str:
    """``text`` with frames in ASCII, for pipes, files and plain locales."""
    return text.translate(_FRAME)


def keyed(name: str, value: object) -> str:
    """The value of a key column ``name``: sizes with their unit, ``-`` for None."""
    if name.endswith("_bytes") and isinstance(value, int):
        return size(value)
    return "-" if value is None else str(value)


def wait(seconds: float) -> str:
    """A waiting time, rounded: ``40 s``, ``3 min``."""
    for long, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * long:
            return f"{seconds / long:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


def rest(done: float, total: float, seconds: float) -> str:
    """Progress after ``seconds``: the share of ``total`` that is done, and the time left."""
    text = f", {100 * min(done / total, 1):.0f} %"
    # Estimates from the first second are mostly wrong.
    if seconds < 1 or not 0 < done < total:
        return text
    return f"{text}, about {wait(seconds * (total - done) / done)} left"
