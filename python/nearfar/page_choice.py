"""The best page size of a paging study, for one memory size and storage.

Every command and HTML page takes its page size from :func:`choose`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nearfar import units
from nearfar.declared import paging as declared
from nearfar.gain_error import equal_best

#: Bytes of the page that x86-64 and most arm64 systems use by default.
USUAL_PAGE: Final = 4096
#: Smaller gains are shown as no gain.
LEAST_SHOWN: Final = 0.0005
#: A page size may add this share of memory, even without a gain.
FREE_GROWTH: Final = 0.1
#: Beyond that, memory may grow by at most this many times the share of time that is saved.
GROWTH_PER_GAIN: Final = 2.0

#: A smaller share of large pages that are read before they are written is not reported.
READ_FIRST: Final = 0.1


@dataclass(frozen=True)
class PageChoice:
    """The choice of a page size.

    Attributes:
        row: the row of the best page size.
        usual: the row of 4 KiB pages; None if they were not studied.
        fastest: the row with the shortest counted time (:func:`counted_ns`).
        costly: the row that would be best if memory did not matter; None if that is ``row``.
        gains: share of the counted time with 4 KiB pages that each page size saves; empty without
            4 KiB pages.
        whole: whether the time of the whole run counts.
    """

    row: declared.Row
    usual: declared.Row | None
    fastest: declared.Row
    costly: declared.Row | None
    gains: Mapping[int, float]
    whole: bool

    @property
    def page_bytes(self) -> int:
        """Bytes of the best page."""
        return self.row["page_bytes"]

    @property
    def gain(self) -> float | None:
        """The share of the counted time that the best page saves, 0 to 1, if known."""
        return self.gains.get(self.page_bytes)

    @property
    def refusal(self) -> str | None:
        """Why a page size that gains more is not chosen, if its memory is the reason."""
        if self.costly is None or self.usual is None:
            return None
        page = self.costly["page_bytes"]
        times = private_bytes(self.costly) / max(private_bytes(self.usual), 1)
        return (
            f"{units.size(page)} pages would save {units.percent(self.gains[page])} of the time"
            f"{self.when}, but take {units.digits(times, 2)} times the memory"
        )

    @property
    def when(self) -> str:
        """A phrase that says which time counts, to append to a statement about time."""
        return "" if self.whole or self.row.get("start_ns") is None else " once memory is filled"


def usual_row(rows: Iterable[declared.Row]) -> declared.Row | None:
    """The first row of 4 KiB pages; None if there is none."""
    return next((row for row in rows if row["page_bytes"] == USUAL_PAGE), None)


def choose(
    rows: Sequence[declared.Row], *, whole: bool = False, min_gain: float = 0.0
) -> PageChoice:
    """Choose the best page size, for one memory size and storage.

    With ``--view machine``, the smallest page size whose gain over 4 KiB is within the error
    (:func:`.gain_error`) of the largest, among those that add no more memory than their gain is
    worth; 4 KiB if no gain is larger than its error. Otherwise the row with the shortest time; of
    equal times, the page size nearest to 4 KiB.

    Args:
        rows: a row for each page size.
        whole: count the time in which memory is filled.
        min_gain: smaller gains do not count.
    """
    usual = usual_row(rows)
    fastest = min(
        rows, key=lambda row: (counted_ns(row, whole), abs(row["page_bytes"] - USUAL_PAGE))
    )
    gains: dict[int, float] = {}
    if usual is not None and counted_ns(usual, whole):
        base = counted_ns(usual, whole)
        gains = {row["page_bytes"]: 1.0 - counted_ns(row, whole) / base for row in rows}
    # Only rows of `--view machine` have `cpu_ns`.
    if usual is None or usual.get("cpu_ns") is None or not gains:
        return PageChoice(fastest, usual, fastest, None, gains, whole)
    by_page = {row["page_bytes"]: row for row in rows}
    fits = {
        page: gain
        for page, gain in gains.items()
        if private_bytes(by_page[page])
        <= private_bytes(usual) * (1 + max(FREE_GROWTH, GROWTH_PER_GAIN * gain))
    }
    # Of equal gains, the smallest page: it wastes least memory.
    page = min(equal_best(fits, min_gain), default=USUAL_PAGE)
    wanted = min(equal_best(gains, min_gain), default=USUAL_PAGE)
    costly = None if wanted in fits or wanted == page else by_page[wanted]
    return PageChoice(by_page[page], usual, fastest, costly, gains, whole)


def counted_ns(row: declared.Row, whole: bool) -> float:
    """Nanoseconds per reference that count: of the whole run, or once memory is filled."""
    return row["total_ns"] - (0.0 if whole else row.get("start_ns") or 0.0)


def private_bytes(row: declared.Row) -> int:
    """Peak of private memory; 0 without ``--view machine``."""
    return row.get("resident_bytes") or 0


def needed_kernel(row: declared.Row) -> str | None:
    """The Linux version that these pages need, and why; None if any kernel gives them."""
    share = row.get("read_first_share") or 0.0
    if share < READ_FIRST:
        return None
    return (
        f"needs Linux 6.13 or later: {units.percent(share)} of the {units.size(row['page_bytes'])} "
        "pages are read before they are written; older kernels keep 4 KiB pages there"
    )


def start_share(usual: declared.Row) -> float:
    """The share of the run's time in which memory is filled, with 4 KiB pages."""
    return (usual.get("start_ns") or 0.0) / (usual["total_ns"] or 1.0)


def start_gain(row: declared.Row, usual: declared.Row) -> float:
    """How much less time filling memory takes than with 4 KiB pages, as a share."""
    before = usual.get("start_ns")
    return 1.0 - (row.get("start_ns") or 0.0) / before if before else 0.0


def start_sentence(rows: Sequence[declared.Row], chosen: PageChoice) -> str | None:
    """How long filling memory takes, and what the page size changes; None if that is not known."""
    usual = chosen.usual
    if usual is None or not usual.get("start_ns"):
        return None
    text = f"Filling memory is {units.percent(start_share(usual))} of the run"
    page, would = chosen.row, "take"
    if page is usual:
        page, would = choose(rows, whole=True).row, "would take"
    if page is usual:
        return f"{text}."
    gain = start_gain(page, usual)
    return (
        f"{text}; {units.size(page['page_bytes'])} pages {would} {units.percent(abs(gain))} "
        f"{'less' if gain >= 0 else 'more'} time for it."
    )
