"""The heat map: references by address and time, drawn on a canvas by ``heat.js``.

A canvas of our own rather than a chart: 65,536 cells are one image, not 65,536 marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearfar import units
from nearfar.errors import NearfarError
from nearfar.report.html import page


def model(data: Mapping[str, Any]) -> Mapping[str, object]:
    """What the script draws from.

    Args:
        data: ``time_bins``, ``address_bins`` (low to high, each ``addr_low``, ``addr_high``,
            ``label``), ``counts[address][time]``, ``records_per_bin`` and ``seconds``: where a time
            bin begins and the last one ends, or None.

    Raises:
        NearfarError: the counts have another shape than the bins.
    """
    _check(data)
    return {
        "times": int(data["time_bins"]),
        "per_bin": data["records_per_bin"],
        # As text: a 64-bit address does not fit a JavaScript number.
        "rows": [
            [f"{int(b['addr_low']):#x}", f"{int(b['addr_high']):#x}", units.clean(b["label"])]
            for b in data["address_bins"]
        ],
        "counts": data["counts"],
        "seconds": data.get("seconds"),
    }


def section(data: Mapping[str, Any]) -> str:
    """The section of the page, with the busiest regions in words and a table of all."""
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
    body = (
        '<figure><div class="heat"><div class="bands" id="heat-bands" aria-hidden="true"></div>'
        '<canvas id="heat-map" tabindex="0" role="img" '
        'aria-label="References by address and time; arrow keys read out a cell" '
        'aria-describedby="heat-caption heat-reading"></canvas>'
        '<div class="ticks" id="heat-ticks" aria-hidden="true"></div></div>'
        '<p class="reading" id="heat-reading" aria-live="polite">'
        "Point at the map, or choose it and use the arrow keys.</p>"
        '<p class="key"><span id="heat-least"></span><canvas id="heat-scale" width="128" '
        'height="1" aria-hidden="true"></canvas><span id="heat-most"></span></p>'
        f'<figcaption id="heat-caption">{page.text(page.typeset(caption))}</figcaption></figure>'
        + page.details(
            "The regions",
            page.table(["region", "references", "share"], rows, "References by region"),
        )
    )
    return page.section("heat", "Where and when", body, wide=True)


def _check(data: Mapping[str, Any]) -> None:
    times, rows, counts = data["time_bins"], data["address_bins"], data["counts"]
    if len(counts) != len(rows) or any(len(row) != times for row in counts):
        raise NearfarError(
            f"heat map: its counts are not {len(rows)} address bins of {times} time bins each; "
            "give counts[address][time]"
        )
