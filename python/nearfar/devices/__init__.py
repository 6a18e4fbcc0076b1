"""``devices``: devices below memory in one table, for one program and one host (docs/devices.md).

>>> result = devices("app.trace", memory="50%")      # doctest: +SKIP
>>> min(result.rows, key=lambda row: row["slowdown"])["storage"]      # doctest: +SKIP
'cxl'
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import ClassVar, Unpack, cast

from nearfar import machine as machines
from nearfar.declared import devices as declared
from nearfar.declared import paging as paging_declared
from nearfar.devices.models import CXL_MEMORY, Device, Pages, Prices, Row, model
from nearfar.devices.options import CXL_SSD, DRAM_SSD
from nearfar.errors import NearfarError
from nearfar.machine import Machine
from nearfar.memory_curve import Memory, MemoryCurve, allowed_slowdown
from nearfar.paging import machine_warnings, paging, trace_warnings
from nearfar.paging_findings import USUAL_PAGE
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, complete, takes
from nearfar.size import zram_ratio
from nearfar.sizes import list_of, parse_memory
from nearfar.strict import Json, parse_json, read_trace

#: Memory sizes of the curves, as percent of the peak resident set.
_GRID = (1, *range(5, 101, 5))


class DevicesRun(Run, total=False):
    """How devices were compared."""

    peak_bytes: int
    busy_threads: int


@dataclass(frozen=True)
class DevicesResult(FolderResult):
    """Devices compared.

    Attributes:
        run: how they were compared.
        rows: one per device (docs/devices.md names the keys).
        notes: warnings, one per line.
    """

    run: DevicesRun
    rows: list[declared.Row]
    notes: list[str] = field(compare=False, default_factory=list)

    shown = "nearfar.report.devices:view"
    page = "nearfar.report.html.devices:DevicesPage"
    columns: ClassVar[Rows] = declared.ROWS


@takes(declared.OPTIONS)
def devices(
    trace: str | PathLike[str],
    *,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> DevicesResult:
    """Compare devices for a program.

    Args:
        trace: a trace folder, or a :class:`nearfar.trace.Trace`.
        progress: called now and then with the number of records done.
        {options}

    Raises:
        NearfarError: bad input; the message says what, where and what to do.
    """
    path, parsed = Path(trace), complete(declared.OPTIONS, options)
    names = list(dict.fromkeys(list_of(parsed["storage"])))
    sizes = parse_memory(parsed["memory"])
    if len(sizes) != 1:
        raise NearfarError(f"--memory: {parsed['memory'][:40]!r} is not one size; give such as 50%")
    ratio, prices = zram_ratio(parsed["zram_ratio"]), Prices.parse(parsed["cost"], names)
    for_cxl_ssd = [CXL_MEMORY] if CXL_SSD in names else []
    stored = [name for name in names if name not in (CXL_SSD, DRAM_SSD)]
    machine = machines.paging_machine(parsed["machine"], [*stored, *for_cxl_ssd])
    info = parse_json(read_trace(path))
    if info["source"].get("sample"):
        raise NearfarError(
            f"{path}: holds a sample of the pages, but this command needs every reference; capture "
            "without --sample; `nearfar size` reads samples"
        )
    busy = _busy_threads(info)
    modelled = [model(name, machine, busy, ratio) for name in names]

    study = _Study(path, machine, parsed, progress)
    found = study.run([f"{percent}%" for percent in _GRID])
    grid, peak = sorted(found), max(found)
    memory = min(round(sizes[0].value * (peak if sizes[0].is_fraction else 1)), peak)
    memory = max(memory, grid[0])
    # Also study `--memory` less zram's compressed pages, and all sizes plus a device's DRAM.
    wanted = {device.left(memory, peak) for device in modelled}
    cached = {device.cache for device in modelled if device.cache}
    wanted |= {size + cache for cache in cached for size in (*grid, memory)}
    more = sorted(size for size in wanted - found.keys() if size and size < peak)
    pages = Pages(found | study.run(list(map(str, more))), peak)

    limit = allowed_slowdown(cast("Run", {"options": parsed}), paging_declared.OPTIONS)
    rows = [_row(device, pages, grid, memory, limit, prices) for device in modelled]
    run: DevicesRun = {
        **provenance(
            "devices",
            arguments=[path],
            options=declared.OPTIONS,
            values=cast("dict[str, object]", parsed),
            trace=path,
            machine=machine,
        ),
        "peak_bytes": peak,
        "busy_threads": busy,
    }
    return DevicesResult(run, rows, [*trace_warnings(run), *machine_warnings(run)])


@dataclass(frozen=True)
class _Study:
    """Paging studies of the program, with 4 KiB pages under Linux's policy."""

    trace: Path
    machine: Machine
    options: declared.Options
    progress: Callable[[int], None] | None

    def run(self, memory: Sequence[str]) -> dict[int, dict[str, Row]]:
        """The rows of these memory sizes, by size and storage."""
        if not memory:
            return {}
        result = paging(
            self.trace,
            machine=self.machine,
            storage=list(self.machine.storages),
            page_sizes=[USUAL_PAGE],
            memory=",".join(memory),
            replacement="linux",
            view="machine",
            threads=self.options["threads"],
            max_memory=self.options["max_memory"],
            progress=self.progress,
        )
        if not result.rows:
            raise NearfarError(
                f"{self.trace}: touches fewer than 8 pages of 4 KiB, too few for this command; "
                "capture more"
            )
        rows: dict[int, dict[str, Row]] = {}
        for row in result.rows:
            rows.setdefault(row["memory_bytes"], {})[row["storage"]] = row
        return rows


def _row(
    device: Device, pages: Pages, grid: Sequence[int], memory: int, limit: float, prices: Prices
) -> declared.Row:
    base = device.time(pages, pages.peak)
    left = device.left(memory, pages.peak)
    if left is not None and left < grid[0]:
        left = None
    time = None if left is None else device.time(pages, left)
    times = tuple((Memory(size, None), device.time(pages, size)) for size in grid)
    curve = MemoryCurve(device.name, times, base)
    enough = curve.enough(limit)
    fits = pages.peak if enough is None else enough.bytes
    needed, rest = device.needed(fits, pages.peak), pages.peak - fits
    return {
        "storage": device.name,
        "access": device.access,
        "memory_bytes": memory,
        "total_ns": time,
        "slowdown": None if time is None else time / base - 1,
        "device_reads": None if left is None else pages.reads(left),
        "needed_bytes": needed,
        "device_bytes": rest,
        "cost": prices.cost(device, needed, rest),
    }


def _busy_threads(info: Json) -> int:
    """The number of threads with at least 1 % of the references."""
    return sum(100 * thread["records"] >= info["records"] for thread in info["threads"])
