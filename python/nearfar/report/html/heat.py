"""The heat map: references by address and time, as one image in the page.

An image, because a Vega-Lite chart would have one mark for each of 65,536 cells.
"""

from __future__ import annotations

import base64
import itertools
import struct
import zlib
from collections import Counter
from typing import Final

import numpy as np
import numpy.typing as npt

from nearfar import units
from nearfar.errors import NearfarError
from nearfar.info import HeatMap
from nearfar.report import palette
from nearfar.report.html import page

#: Number of colours of the image; cells without references are transparent.
_COLOURS: Final = 64
#: Unused share of the ramp at its dark end, so that one reference is visible on a dark page.
_DARKEST: Final = 0.15


def section(data: HeatMap) -> str:
    """The section: the image, the regions with most references, and a table of all regions.

    Raises:
        NearfarError: the shape of the counts does not match the bins.
    """
    _check(data)
    totals: Counter[str] = Counter()
    for addresses, counts in zip(data["address_bins"], data["counts"], strict=True):
        totals[units.clean(addresses["label"]) or "(no name)"] += sum(counts)
    total = totals.total()
    if not total:
        return page.section("heat", "Where and when", "<p>No references.</p>", wide=True)
    ranked = totals.most_common()
    named = ", ".join(f"{n} {units.percent(c / total)}" for n, c in ranked[:3])
    caption = f"Most references go to: {named}. Addresses that were never touched are left out."
    if data["seconds"]:
        caption += (
            " Times are those of the capture, under which a program runs several times slower than"
            " alone; each column holds equally many references."
        )
    rows = [
        [
            page.text(name),
            page.text(units.count(number)),
            page.prose(units.percent(number / total)),
        ]
        for name, number in ranked
    ]
    image = base64.b64encode(_png(np.array(data["counts"]))).decode()
    largest = max(map(max, data["counts"]))
    ramp = ", ".join(palette.viridis(_DARKEST + (1 - _DARKEST) * i / 8) for i in range(9))
    body = (
        f'<figure><div class="heat"><div class="bands" aria-hidden="true">{_bands(data)}</div>'
        f'<img id="heat-map" src="data:image/png;base64,{image}" role="img" '
        'alt="References by address and time" aria-label="References by address and time" '
        'aria-describedby="heat-caption">'
        f'<div class="ticks" id="heat-ticks" aria-hidden="true">{_ticks(data)}</div></div>'
        f'<p class="key">1 reference <span id="heat-scale" style="background: linear-gradient('
        f'to right, {ramp})"></span> {page.text(units.count(largest))}</p>'
        f'<figcaption id="heat-caption">{page.prose(caption)}</figcaption></figure>'
        + page.details(
            "The regions",
            page.table(["region", "references", "share"], rows, "References by region"),
        )
    )
    return page.section("heat", "Where and when", body, wide=True)


def _png(counts: npt.NDArray[np.int64]) -> bytes:
    """An image with a pixel for each cell, highest address on top; cells of 0 are transparent.

    Colours are on a logarithmic scale, so that rarely touched pages are visible.
    """
    share = np.log(np.maximum(counts, 1)) / max(np.log(counts.max()), 1e-9)
    cells = np.where(counts > 0, 1 + np.rint(share * (_COLOURS - 1)), 0).astype(np.uint8)[::-1]
    last = _COLOURS - 1
    colours = [palette.viridis(_DARKEST + (1 - _DARKEST) * i / last) for i in range(_COLOURS)]
    high, wide = cells.shape

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    # 8 bits a pixel, colour type 3 (palette); colour 0 is transparent; each row begins with its
    # filter, 0 for none.
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 3, 0, 0, 0)),
            chunk(b"PLTE", bytes(3) + bytes.fromhex("".join(colours).replace("#", ""))),
            chunk(b"tRNS", b"\0"),
            chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in cells), 9)),
            chunk(b"IEND", b""),
        )
    )


def _bands(data: HeatMap) -> str:
    """Names next to the image, each at the middle of its region; overlapping ones are omitted."""
    labels = [units.clean(addresses["label"]) for addresses in data["address_bins"]]
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
        free = top + 0.05  # about the height of a label, as a share of the image's
        # The last part of a path identifies a file.
        cached = label.startswith("page cache: /")
        name = label.rpartition("/")[2] if cached or label.startswith("/") else label
        name = f"cache: {name}" if cached else name.replace("(anonymous) ", "")
        shown.append(
            f'<span style="top:{100 * top:.2f}%" title="{page.text(label)}">'
            f"<bdi>{page.text(name or '(no name)')}</bdi></span>"
        )
    return "".join(shown)


def _ticks(data: HeatMap) -> str:
    bins = [round(share * data["time_bins"]) for share in (0, 0.25, 0.5, 0.75, 1)]
    if data["seconds"]:  # The last entry is the end of the last bin.
        texts = [f"{units.digits(data['seconds'][index])} s" for index in bins]
    else:
        texts = [units.count(index * data["records_per_bin"]) for index in bins]
    return "".join(f"<span>{page.prose(text)}</span>" for text in texts)


def _check(data: HeatMap) -> None:
    times, rows, counts = data["time_bins"], data["address_bins"], data["counts"]
    if len(counts) != len(rows) or any(len(row) != times for row in counts):
        raise NearfarError(
            f"heat map: its counts are not {len(rows)} address bins of {times} time bins each; "
            "give counts[address][time]"
        )
