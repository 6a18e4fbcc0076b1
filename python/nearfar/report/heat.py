"""``nearfar info`` of a DAMON record, as text tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.text import Text

from nearfar import units
from nearfar.heat import ROWS
from nearfar.report.cells import cells
from nearfar.report.tables import labelled, listing

if TYPE_CHECKING:
    from rich.console import RenderableType

    from nearfar.heat import HeatResult

#: Maximum number of pieces shown, hottest first.
_SHOWN: Final = 10


def heat(found: HeatResult) -> RenderableType:
    """Key facts, heat by time, and the hottest pieces of the address space."""
    seconds = found.rows[-1]["end_ns"] / 1e9
    assumed = ", DAMON's default: the record does not say" if found.sample_assumed else ""
    working = found.working_set
    facts = [
        ("heat", f"{found.heat}: {units.count(found.snapshots)} snapshots of {found.targets} "
                 f"target{'s' * (found.targets != 1)} in {units.digits(seconds)} s"),
        ("monitored", units.size(found.monitored_bytes)),
        ("working set", f"mean {units.size(working['mean'])}, half of the time at most "
                        f"{units.size(working['p50'])}, most {units.size(working['most'])}"),
        ("counted", "as by damo: a region with a sampled access counts as a whole"),
        ("samples", f"up to {found.samples} per region and snapshot, one every "
                    f"{units.duration(found.sample_ns)}{assumed}"),
        ("not known", "references and their order, reads or writes, pages within a region: no "
                      "page size, fault or latency follows from it"),
    ]  # fmt: skip
    sizes = cells(ROWS, ("low_bytes", "likely_bytes", "high_bytes", "seen_bytes"), found.rows)
    times = [
        (f"{row['start_ns'] / 1e9:.1f} .. {row['end_ns'] / 1e9:.1f}", *of_row)
        for row, of_row in zip(found.rows, sizes, strict=True)
    ]
    hottest = sorted(found.pieces, key=lambda piece: -(piece["share"] or 0))[:_SHOWN]
    pieces = [
        (
            f"{int(piece['addr'] or 0):#x}",
            units.size(piece["bytes"] or 0),
            units.percent(piece["share"] or 0),
            "never" if piece["last_ns"] is None else f"{piece['last_ns'] / 1e9:.1f}",
        )
        for piece in hottest
    ]
    return Group(
        labelled(facts),
        Text(""),
        listing(
            "Heat by time: bytes accessed in a sampling interval, with bounds of 95 %",
            ["seconds", "at least", "likely", "at most", "working set"],
            times,
        ),
        Text(""),
        listing(
            "Hottest pieces of the address space",
            ["from", "size", "samples with an access", "last access, s"],
            pieces,
        ),
    )
