"""The ``ssd`` study: a DRAM-interface SSD as memory, and what a core does during a page transfer.

It reproduces UMD (paper 002). The engine replays a trace once for each policy of embedded page
faults (EPF) and each size of the device's DRAM (docs/ssd.md); this module makes the result.

>>> result = ssd("app.trace", dram=["100M", "150M"])            # doctest: +SKIP
>>> result.best(dram_bytes=100 << 20)["epf"]                    # doctest: +SKIP
'all'
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import ClassVar, TypedDict, Unpack

from nearfar import _engine
from nearfar import machine as machines
from nearfar.declared import ssd as declared
from nearfar.errors import NearfarError
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, default, takes
from nearfar.strict import Json

MACHINE: str = default(declared.OPTIONS, "machine")


class Conditioned(TypedDict):
    """The preconditioned state of the flash (``crates/hardware/src/flash/condition.rs``)."""

    sequential_writes: int
    random_writes: int
    further_writes: int
    collecting: bool
    collections: int
    write_amplification: float
    mapped_pages: int
    least_free_blocks: int
    mean_erases: float


class Bin(TypedDict):
    """Numbers of page transfers whose predicted or actual time is in this bin.

    In ``error`` of :class:`Detail`, ``actual`` counts those whose actual time exceeds the predicted
    one by the time in this bin.
    """

    low_ns: int
    high_ns: int
    predicted: int
    actual: int


class Timeline(TypedDict):
    """Nanoseconds of running, stalling, sleeping and waiting for the disk, by thread and interval.

    ``stretch_ns`` is the length of an interval.
    """

    stretch_ns: int
    threads: list[list[tuple[int, int, int, int]]]


class Detail(TypedDict):
    """Details of a row: the flash at the start, histograms of times and errors, a timeline."""

    conditioned: Conditioned | None
    service: list[Bin]
    error: list[Bin]
    timeline: Timeline


@dataclass(frozen=True)
class SsdResult(FolderResult):
    """The result of an ssd study.

    Attributes:
        run: the record of the run: trace, machine, options, version.
        rows: one per size of DRAM x policy (docs/ssd.md describes the keys).
        details: one per row.
        wall_seconds: duration of the run; not part of any reproducible output.
    """

    run: Run
    rows: list[declared.Row]
    details: list[Detail]
    wall_seconds: float = field(compare=False, default=0.0)

    shown = "nearfar.report.ssd:ssd"
    page = "nearfar.report.html.ssd:SsdPage"
    chart = "nearfar.report.plots.ssd:draw"
    plain = ("run", "rows", "details")
    columns: ClassVar[Rows] = declared.ROWS
    in_run = ("details", "wall_seconds")

    def best(self, *, dram_bytes: int | None = None) -> declared.Row:
        """The row with the shortest time, of a size of DRAM if given.

        Raises:
            NearfarError: no row has that size.
        """
        rows = [row for row in self.rows if dram_bytes in (None, row["dram_bytes"])]
        if not rows:
            raise NearfarError("best: no such size of DRAM in this result")
        return min(rows, key=lambda row: row["seconds"])


@takes(declared.OPTIONS)
def ssd(
    trace: str | PathLike[str],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> SsdResult:
    """Run the ssd study.

    Args:
        trace: a trace folder, or a :class:`nearfar.trace.Trace`.
        progress: called regularly with the number of references so far, summed over all rows.
        {options}

    Raises:
        NearfarError: bad input.
    """
    path, began = Path(trace), time.monotonic()
    machine = machines.load(options.pop("machine", MACHINE))
    answer: Json = json.loads(_engine.ssd(path, machine, options=options, progress=progress))
    run = provenance(
        "ssd",
        arguments=[path],
        options=declared.OPTIONS,
        values=answer["options"],
        trace=path,
        machine=machine,
    )
    return SsdResult(run, answer["rows"], answer["details"], time.monotonic() - began)


def warnings(result: SsdResult) -> list[str]:
    """Warnings for the user of a result, one line each."""
    from nearfar.paging import trace_warnings

    lines = trace_warnings(result.run)
    first = result.details[0]["conditioned"]
    if first is not None and not first["collecting"]:
        lines.append("the flash is not full enough for garbage collection: see --precondition")
    return lines
