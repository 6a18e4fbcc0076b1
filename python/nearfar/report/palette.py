"""Colours and marks that colour-blind readers can distinguish.

``OKABE_ITO``: Okabe and Ito, "Color Universal Design", 2008, for unordered values.
``VIRIDIS``: eight anchors of matplotlib's viridis (van der Walt and Smith, 2015, CC0), for ordered
values such as memory sizes. Colour is never the only mark: every series also has a shape, every
verdict a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

#: A grey that shows on a light and on a dark page.
GREY = "#8c8c8c"
OKABE_ITO = {
    "blue": "#0072b2",
    "orange": "#e69f00",
    "green": "#009e73",
    "vermillion": "#d55e00",
    "sky": "#56b4e9",
    "purple": "#cc79a7",
    "yellow": "#f0e442",
    "black": "#000000",
}
#: Colours of lines and bars: not yellow (invisible on a light page) or black (on a dark one).
SERIES = [colour for name, colour in OKABE_ITO.items() if name not in ("yellow", "black")]
VIRIDIS = (
    "#440154",
    "#46327e",
    "#365c8d",
    "#277f8e",
    "#1fa187",
    "#4ac16d",
    "#a0da39",
    "#fde725",
)
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
#: Dash and gap of a curve in pixels, by verdict of its fit; without a gap it is solid.
DASHES = {"good": (1, 0), "fair": (6, 3), "bad": (2, 3)}


def viridis(position: float) -> str:
    """The colour at ``position`` (0 dark .. 1 light), linear between anchors, as ``#rrggbb``."""
    scaled = min(max(position, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(scaled), len(VIRIDIS) - 2)
    share = scaled - low
    pairs = zip(_channels(VIRIDIS[low]), _channels(VIRIDIS[low + 1]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def ramp(count: int, low: float = 0.08, high: float = 0.85) -> list[str]:
    """``count`` colours in order, between the positions ``low`` and ``high`` of viridis."""
    if count == 1:
        return [viridis((low + high) / 2)]
    return [viridis(low + (high - low) * i / (count - 1)) for i in range(count)]


def cycled(marks: Sequence[str], count: int) -> list[str]:
    """``count`` of the colours or shapes, repeated from the first if there are fewer."""
    return list(islice(cycle(marks), count))


def ink(background: str) -> str:
    """Black or white, whichever contrasts more with ``background`` (WCAG 2 relative luminance)."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (v / 255 for v in _channels(background))
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"


def _channels(colour: str) -> Sequence[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
