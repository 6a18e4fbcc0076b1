"""The heat map: references by address and time, as one image in the page.

An image rather than a chart: 65,536 cells would be 65,536 marks.
"""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from nearfar import units
from nearfar.errors import NearfarError
from nearfar.report import palette
from nearfar.report.html import page

#: Colours of the image, beside the one of no references.
_COLOURS: Final = 64
#: Share of the ramp that is left out: once is still seen on a dark page.
_DARKEST: Final = 0.15


def section(data: Mapping[str, Any]) -> str:
    """The section of the page, with the busiest regions in words and a table of all.

    Args:
        data: ``time_bins``, ``address_bins`` (low to high, each ``addr_low``, ``addr_high``,
            ``label``), ``counts[address][time]``, ``records_per_bin`` and ``seconds``: where a time
            bin begins and the last one ends, or None.

    Raises:
        NearfarError: the counts have another shape than the bins.
    """
    _check(data)
    totals: dict[str, int] = {}
    for place, counts in zip(data["address_bins"], data["counts"], strict=True):
        name = units.clean(place["label"]) or "(no name)"
        totals[name] = totals.get(name, 0) + sum(counts)
    everything = sum(totals.values())
    if not everything:
        return page.section("heat", "Where and when", "<p>No references.</p>", wide=True)
    ranked = sorted(totals.items(), key=lambda pair: -pair[1])
    named = ", ".join(f"{n} {units.percent(c / everything)}" for n, c in ranked[:3])
    caption = f"Most references go to: {named}. Addresses that were never touched are left out."
    if data.get("seconds"):
        caption += (
            " Times are those of the capture, under which a program runs several times slower than"
            " alone; each column holds equally many references."
        )
    rows = [
        [
            page.text(name),
            page.text(units.count(number)),
            page.text(page.typeset(units.percent(number / everything))),
        ]
        for name, number in ranked
    ]
    image = base64.b64encode(_png(np.array(data["counts"]))).decode()
    most = max(map(max, data["counts"]))
    ramp = ", ".join(palette.viridis(_DARKEST + (1 - _DARKEST) * i / 8) for i in range(9))
    body = (
        f'<figure><div class="heat"><div class="bands" aria-hidden="true">{_bands(data)}</div>'
        f'<img id="heat-map" src="data:image/png;base64,{image}" role="img" '
        'alt="References by address and time" aria-label="References by address and time" '
        'aria-describedby="heat-caption">'
        f'<div class="ticks" id="heat-ticks" aria-hidden="true">{_ticks(data)}</div></div>'
        f'<p class="key">1 reference <span id="heat-scale" style="background: linear-gradient('
        f'to right, {ramp})"></span> {page.text(units.count(most))}</p>'
        f'<figcaption id="heat-caption">{page.text(page.typeset(caption))}</figcaption></figure>'
        + page.details(
            "The regions",
            page.table(["region", "references", "share"], rows, "References by region"),
        )
    )
    return page.section("heat", "Where and when", body, wide=True)


def _png(counts: Any) -> bytes:
    """An image of a pixel a cell, the highest address on top; no references are transparent.

    Colours are logarithmic: a page touched once and one touched a million times both show.
    """
    share = np.log(np.maximum(counts, 1)) / max(np.log(counts.max()), 1e-9)
    cells = np.where(counts > 0, 1 + np.rint(share * (_COLOURS - 1)), 0).astype(np.uint8)[::-1]
    last = _COLOURS - 1
    colours = [palette.viridis(_DARKEST + (1 - _DARKEST) * i / last) for i in range(_COLOURS)]
    high, wide = cells.shape

    def part(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            part(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 3, 0, 0, 0)),
            part(b"PLTE", bytes(3) + bytes.fromhex("".join(colours).replace("#", ""))),
            part(b"tRNS", b"\0"),
            part(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in cells), 9)),
            part(b"IEND", b""),
        )
    )


def _bands(data: Mapping[str, Any]) -> str:
    """Names of the regions beside the image, at their middle; where there is no room, none."""
    labels = [units.clean(place["label"]) for place in data["address_bins"]]
    spans, at = [], 0
    for label, group in itertools.groupby(labels):
        end = at + len(list(group))
        middle = (at + end) / 2 / len(labels)
        at = end
        spans.append((1 - middle, label))
    shown = []
    free = 0.0
    for top, label in reversed(spans):
        if top < free:
            continue
        free = top + 0.05
        # The end of a path tells files apart.
        cached = label.startswith("page cache: /")
        name = label.rpartition("/")[2] if cached or label.startswith("/") else label
        name = f"cache: {name}" if cached else name.replace("(anonymous) ", "")
        shown.append(
            f'<span style="top:{100 * top:.2f}%" title="{page.text(label)}">'
            f"<bdi>{page.text(name or '(no name)')}</bdi></span>"
        )
    return "".join(shown)


def _ticks(data: Mapping[str, Any]) -> str:
    times, seconds = data["time_bins"], data.get("seconds")
    shown = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        place = round(share * times)
        if seconds:
            text = f"{units.digits(seconds[place])} s"
        else:
            text = units.count(place * data["records_per_bin"])
        shown.append(f"<span>{page.text(page.typeset(text))}</span>")
    return "".join(shown)


def _check(data: Mapping[str, Any]) -> None:
    times, rows, counts = data["time_bins"], data["address_bins"], data["counts"]
    if len(counts) != len(rows) or any(len(row) != times for row in counts):
        raise NearfarError(
            f"heat map: its counts are not {len(rows)} address bins of {times} time bins each; "
            "give counts[address][time]"
        )
