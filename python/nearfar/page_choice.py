"""The best page size of a paging study, for one memory size and storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from nearfar.declared import paging as declared
from nearfar.gain_error import worthwhile

#: Bytes of the page that x86-64 and most arm64 systems use by default.
USUAL_PAGE: Final = 4096


def choice(rows: Sequence[declared.Row]) -> declared.Row:
    """The row of the best page size, for one memory size and storage.

    With ``--view machine``, the smallest page size whose gain over 4 KiB does not differ from the
    largest by more than the error, and 4 KiB if no gain is larger than its error. Otherwise the
    row with the shortest time; of equal times, the page size nearest to 4 KiB.
    """
    base = usual(rows)
    if base is None or base.get("cpu_ns") is None or not base["total_ns"]:
        return fastest(rows)
    by_page = {row["page_bytes"]: row for row in rows}
    gains = {page: 1.0 - row["total_ns"] / base["total_ns"] for page, row in by_page.items()}
    return by_page[worthwhile(gains) or USUAL_PAGE]


def usual(rows: Sequence[declared.Row]) -> declared.Row | None:
    """The row of 4 KiB pages, if there is one."""
    return next((row for row in rows if row["page_bytes"] == USUAL_PAGE), None)


def fastest(rows: Sequence[declared.Row]) -> declared.Row:
    """The row with the shortest time; of equal times, that of the page size nearest to 4 KiB."""
    return min(rows, key=lambda row: (row["total_ns"], abs(row["page_bytes"] - USUAL_PAGE)))
