"""The ``ssd`` study: a DRAM-interface SSD as memory, and what to do while it moves a page.

UMD (002). The engine replays a trace on the machine once for each policy and each size of the
device's DRAM (docs/ssd.md); this module packages the result.

>>> result = ssd("app.trace", dram=["100M", "150M"])            # doctest: +SKIP
>>> result.best(dram_bytes=100 << 20)["epf"]                    # doctest: +SKIP
'all'
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypedDict, Unpack

from nearfar import _engine
from nearfar import machine as machines
from nearfar.declared import ssd as declared
from nearfar.errors import NearfarError
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, default, takes

#: The default machine.
MACHINE: str = default(declared.OPTIONS, "machine")


class Conditioned(TypedDict):
    """The state that the flash was left in (``crates/hardware/src/flash/condition.rs``)."""

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
    """Services whose time is in this bin, predicted and actual."""

    low_ns: int
    high_ns: int
    predicted: int
    actual: int


class Timeline(TypedDict):
    """Nanoseconds of running, stalling, sleeping and disk, by thread and interval."""

    stretch_ns: int
    threads: list[list[tuple[int, int, int, int]]]


class Detail(TypedDict):
    """What is too long for a row."""

    conditioned: Conditioned | None
    service: list[Bin]
    error: list[Bin]
    timeline: Timeline


@dataclass(frozen=True)
class SsdResult(FolderResult):
    """What an ssd study found.

    Attributes:
        run: how it was made: trace, machine, options, version; no times of day.
        rows: one mapping per size of DRAM x policy (docs/ssd.md names the keys).
        details: for each row the state of the flash at the start, histograms of predicted and
            actual service times and of the error, and a timeline of the threads.
        wall_seconds: how long it took; kept out of everything that must be the same every time.
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

    @classmethod
    def restore(cls, run: Any, tables: Mapping[str, Any]) -> SsdResult:
        """Read back what :meth:`write` wrote."""
        kept: Any = dict(run)
        details, seconds = kept.pop("details"), kept.pop("wall_seconds")
        return cls(kept, tables["result"].to_pylist(), details, seconds)

    def _run(self) -> Mapping[str, Any]:
        return {**self.run, "details": self.details, "wall_seconds": round(self.wall_seconds, 3)}

    def best(self, *, dram_bytes: int | None = None) -> declared.Row:
        """Return the row of least time among those of a size of DRAM.

        Raises:
            NearfarError: no row is of that size.
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
        progress: called now and then with the references done in all cells.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    values = dict(options)
    described = machines.load(options.get("machine", MACHINE))
    values.pop("machine", None)
    path = Path(trace)
    began = time.monotonic()
    answer = json.loads(_engine.ssd(path, described, options=values, progress=progress))
    run = provenance(
        "ssd",
        arguments=[path],
        options=declared.OPTIONS,
        values=answer["options"],
        trace=path,
        machine=described,
    )
    return SsdResult(run, answer["rows"], answer["details"], time.monotonic() - began)


def warnings(result: SsdResult) -> list[str]:
    """What a reader of the result should know: lines of plain text."""
    from nearfar.paging import trace_warnings

    lines = trace_warnings(result.run)
    first = result.details[0]["conditioned"]
    if first is not None and not first["collecting"]:
        lines.append("the flash was not filled so far that it must collect: see --precondition")
    if not any(row["embedded_faults"] for row in result.rows):
        lines.append("the program fits the device's DRAM: no embedded page fault at any size")
    return lines
