"""UMD (paper 002), a DRAM-interface SSD, against the ``ssd`` study: figure 2, table 1, statements.

All DRAM sizes and policies share one :class:`Setting`; what the paper leaves open is varied one at
a time (:data:`ALTERNATIVES`). The program is pigz (``workloads/pigz.toml``), with 1.4 billion
references.
The repository has its page view (:func:`view`), in which instruction counts are those of the full
program. ``papers/002/pigz.toml`` has what the view lacks: waits for DRAM and page walks, and the
number of accesses.
"""

from __future__ import annotations

import json
import math
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

from nearfar import _engine, units, workload
from nearfar import machine as machines
from nearfar.declared import reproduce as declared
from nearfar.declared import ssd as ssd_declared
from nearfar.generate import generate
from nearfar.reproduce import Reproduced, TextTable, compared, measured, published
from nearfar.reproduce._evidence import captures
from nearfar.sizes import parse_bytes, parse_time
from nearfar.ssd import MACHINE, SsdResult, ssd
from nearfar.strict import Json

Progress = Callable[[int], None] | None

SIZES: Final = ("100M", "150M")
#: Which embedded page faults (EPF: the page is not in the device's DRAM) go to the kernel, which
#: may let the thread sleep: none, all, or those predicted to take at least 50 us.
POLICIES: Final = ("none", "all", "smart:50us")
#: Instructions of pigz for each 32 KiB that it passes to its writer thread; decompression runs one
#: such piece ahead of the writer.
_PIECE: Final = 753_000


@dataclass(frozen=True)
class Setting:
    """Choices where UMD (002) is silent, with reasons.

    Attributes:
        program: ``pigz``. The paper unpacks "a file of 45 MB": we take this as the size of the
            compressed file. With its output this is 152 MiB, for which 100 MB of DRAM are too few
            and 150 about enough, as the paper says; if 45 MB were the output (``pigz-45``),
            everything would fit.
        disk: ``None``: files take no time. MARSSx86, the simulator on which the paper builds, ends
            a transfer when the host has read its file, which takes no simulated time
            (``MARSS_DELAY_IO`` in ``qemu/hw/ide/core.c`` is off; with it, a transfer takes 20,000
            cycles).
        file_data: ``clean``. MARSSx86's disk controller copies into guest memory
            (``dma_bdrv_read``) without the caches and the memory model, so the device sees no
            write.
        sizes: MB are 2^20 bytes, as for DRAM chips and in QEMU.
        atomic: references during which a thread must not sleep: ``none``. 99 % of pigz's faults are
            in the kernel's copies to and from the page cache. Linux disables page faults in these
            copies, because the copy may hold a page lock for which the fault would wait. But an
            embedded page fault takes no lock, and on x86-64 the copy has no mapping local to the
            core (``kmap_atomic`` returns an address of the direct map). So the thread can sleep
            during a copy; if it may not, there is no gain.
        first_touch: ``new``. A page that the device does not have is an ordinary page fault
            (section 2.2): the flash has no data for a page at its first touch.
        window: instructions that a thread may run ahead of the others: one piece of pigz.
        machine: changes of machines/umd.toml, by key. ``flash.stripe``: dirty pages are programmed
            eight at a time, one on each die of the assumed geometry, as drives write. Programming
            one page per 200 us contradicts figure 2: at 100 MB of DRAM, at least 50 MB more
            pages (12,800) must leave it than at 150 MB, and no_EPF takes 0.7 s longer: 55 us each.
        sleep: granularity of wake-up times. The kernel's own handler sets the timer; the slack of
            50 us is for timers of programs (``schedule_hrtimeout``).
        precondition: shares of the flash filled sequentially and overwritten.
        overwrite: ``drawn``: random writes, as in the paper, so that garbage collection has to move
            pages.
        misses: name of the entry of ``papers/002/pigz.toml`` for the machine's caches.
    """

    program: str = "pigz"
    disk: str | None = None
    file_data: str = "clean"
    sizes: tuple[str, str] = SIZES
    atomic: str = "none"
    first_touch: str = "new"
    window: int = _PIECE
    machine: Mapping[str, str | float] = field(default_factory=lambda: {"flash.stripe": 8})
    sleep: str = "1ns"
    precondition: tuple[float, float] = (0.6, 0.5)
    overwrite: str = "drawn"
    misses: str = "umd"

    def changed(self, **changes: Any) -> Setting:
        """A changed setting; changes of the machine are added to the present ones."""
        machine = {**self.machine, **changes.pop("machine", {})}
        return replace(self, machine=machine, **changes)


#: Other choices, one at a time: name, what it represents, changes of the setting.
ALTERNATIVES: Final[tuple[tuple[str, str, Json], ...]] = (
    ("45 MB unpacked", "45 MB is the size of the output", {"program": "pigz-45"}),
    ("files from a disk", "seeks of 8.5 ms, 156 MB/s, read ahead", {"disk": "hdd"}),
    ("file data is written", "the device sees the disk controller's write", {"file_data": "dirty"}),
    ("decimal megabytes", "MB are 10^6 bytes", {"sizes": ("100000000", "150000000")}),
    ("no stripes", "each page is programmed on its own", {"machine": {"flash.stripe": 1}}),
    ("stripes of 4", "one die of each channel", {"machine": {"flash.stripe": 4}}),
    ("page cache atomic", "copies to and from the page cache may not sleep", {"atomic": "kernel"}),
    ("only kernel stores atomic", "kernel loads may sleep", {"atomic": "kernel-store"}),
    ("first touches read flash", "the device does not know which pages are new",
     {"first_touch": "stored"}),
    ("sleeps in steps of 50 us", "the slack of programs' timers", {"sleep": "50us"}),
    ("sleeps in steps of 250 us", "a coarser timer", {"sleep": "250us"}),
    ("sleeps in steps of 1 ms", "a tick of 1 kHz", {"sleep": "1ms"}),
    ("no preemption", "a woken thread does not interrupt the running one",
     {"machine": {"cost.wakeup_granularity": "1000s"}}),
    ("half kernel costs", "exception 1 us, switch 1.9 us",
     {"machine": {"cost.exception": "1us", "cost.context_switch": "1.9us"}}),
    ("ten times the kernel costs", "a slow kernel, cold caches",
     {"machine": {"cost.exception": "20us", "cost.context_switch": "38us"}}),
    ("1 instruction per cycle", "a faster core", {"machine": {"cpu.ipc": 1.0}}),
    ("0.33 instructions per cycle", "a slower core", {"machine": {"cpu.ipc": 0.33}}),
    ("small caches", "first level 32 KiB each, second level 1 MiB", {"misses": "small"}),
    ("no second cache", "only the first level, 128 KiB each", {"misses": "first-level"}),
    ("one die", "no parallelism",
     {"machine": {"flash.channels": 1, "flash.dies_per_channel": 1,
                  "flash.blocks_per_plane": 8760, "flash.stripe": 1}}),
    ("32 dies", "8 channels of 4, stripes of 32",
     {"machine": {"flash.channels": 8, "flash.dies_per_channel": 4, "flash.stripe": 32,
                  "flash.blocks_per_plane": 274, "flash.gc_start_free": 0.008}}),
    ("erasing takes no time", "the paper gives none", {"machine": {"flash.erase": "0ns"}}),
    ("each page overwritten once", "as tools that fill drives do", {"overwrite": "once"}),
    ("fresh flash", "no collection", {"precondition": (0.6, 0.0)}),
    ("full flash", "all written, then all at random", {"precondition": (1.0, 1.0)}),
    ("28 % spare", "over-provisioning of server drives",
     {"machine": {"flash.over_provisioning": 0.28, "flash.blocks_per_plane": 1310}}),
    ("256 pages per block", "longer collections",
     {"machine": {"flash.pages_per_block": 256, "flash.blocks_per_plane": 274,
                  "flash.gc_start_free": 0.008}}),
    ("shorter run-ahead", "threads run at most half a 32 KiB piece of pigz ahead",
     {"window": _PIECE // 2}),
    ("threads far apart", "up to ten 32 KiB pieces of pigz ahead", {"window": 10 * _PIECE}),
)  # fmt: skip


@dataclass
class _Pigz:
    """The traces of pigz.

    Attributes:
        views: the page views, by program.
        whole: the full capture of the default program, if any.
        threads, progress: as for :func:`study`.
        known: ``papers/002/pigz.toml``.
    """

    views: Mapping[str, Path]
    whole: Path | None
    threads: int
    progress: Progress
    known: Json = field(default_factory=lambda: tomllib.loads(published("002/pigz")))

    def run(
        self, setting: Setting, whole: bool = False, dram: Sequence[str] = (),
        epf: Sequence[str] = POLICIES,
    ) -> SsdResult:  # fmt: skip
        """Run the study under a setting: on the full capture with ``whole``, else on the view.

        Numbers of accesses are those of the full capture in both cases.
        """
        trace = self.whole if whole and self.whole else self.views[setting.program]
        described = machines.load(MACHINE, set=setting.machine)
        if not whole:
            described = self._without_caches(described, setting)
        result = ssd(
            trace, machine=described, dram=dram or setting.sizes, epf=epf,
            precondition=setting.precondition, overwrite=setting.overwrite, disk=setting.disk,
            sleep_granularity=setting.sleep,
            atomic=setting.atomic, first_touch=setting.first_touch, file_data=setting.file_data,
            window=setting.window, threads=self.threads, progress=self.progress,
        )  # fmt: skip
        if not whole:
            accesses = self.known[setting.program][setting.misses]["accesses"]
            for row in result.rows:
                row["accesses"] = accesses
                row["embedded_fault_rate"] = row["embedded_faults"] / accesses
        return result

    def _without_caches(self, described: machines.Machine, setting: Setting) -> machines.Machine:
        """A machine without caches, whose instructions include the time of the cache misses."""
        parts = described.to_dict()
        del parts["cache"]
        cpu, known = parts["cpu"], self.known[setting.program]
        clock = float(str(cpu["clock"]["value"]).removesuffix("GHz"))
        instruction_ns = 1 / (clock * float(cpu["ipc"]["value"]))
        # Of these waits, the simulation of the view itself has ``view_seconds``.
        waits = known[setting.misses]["seconds"] - known["view_seconds"]
        instruction_ns += 1e9 * waits / known["instructions"]
        cpu["ipc"]["value"] = 1 / (clock * instruction_ns)
        return machines.Machine.from_json(described.name, json.dumps(parts))


def study(
    *,
    full: bool = False,
    traces: str | Path | None = None,
    vm: bool = False,
    threads: int = 0,
    progress: Progress = None,
    rows_only: bool = False,
) -> Reproduced:
    """Every result of UMD (002), with ours and its sensitivity.

    Args:
        full: capture the whole program first, into a temporary folder or ``traces``.
        traces: a folder with the full capture, ``pigz.trace``; by default, the page view in the
            repository. The sensitivity and the further tables always use the view.
        vm: use ``pigz-vm.trace``, of a whole virtual machine; without sensitivity and tables.
        threads: 0 = one per core.
        progress: called regularly with the number of references done.
        rows_only: leave out the sensitivity and the tables.

    Raises:
        NearfarError: the trace or pigz is missing (exit code 3), or the trace is damaged.
    """
    with ExitStack() as stack:
        pigz = _open(full, traces, threads, progress, stack, vm)
        usual = Setting()
        rows = _rows(pigz, usual, pigz.whole is not None)
        run = {
            "study": "reproduce ssd",
            "captures": "the whole capture" if pigz.whole else "the bundled view by pages",
            "machine": MACHINE,
            "setting": asdict(usual),
            "version": _engine.__version__,
        }
        if vm or rows_only:
            return Reproduced(rows, run)
        base = _rows(pigz, usual)
        cases = [compared("as chosen", "this run", base, base)]
        for name, why, changes in ALTERNATIVES:
            cases.append(compared(name, why, _rows(pigz, usual.changed(**changes)), base))
        tables = list(_tables(pigz, usual, stack))
        return Reproduced(rows, run, cases, tables=tables)


def _open(
    full: bool,
    traces: str | Path | None,
    threads: int,
    progress: Progress,
    stack: ExitStack,
    vm: bool,
) -> _Pigz:
    """The traces; with ``full``, a missing capture is made first."""
    program = Setting().program
    views = {name: workload.bundled() / f"{name}-pages.trace" for name in (program, "pigz-45")}
    folder = captures([program], full, traces, vm, stack)
    whole = folder and folder / workload.trace_name(program, vm)
    return _Pigz(views, whole, threads, progress)


def view(whole: Path, to: Path, progress: Progress = None) -> Path:
    """Write the page view of a capture: the references that miss a cache with lines of 4 KiB.

    ``papers/002/pigz.toml`` has the size of that cache. It holds far fewer pages than the device,
    so no dropped reference could fault. It is so small that each thread keeps many references:
    the study can switch threads only at references.
    ``tests/data/captures/pigz-pages.trace`` is such a view.
    """
    parts = machines.load(MACHINE).to_dict()
    view = tomllib.loads(published("002/pigz"))["view"]
    level = {key: {"value": view[key], "source": "a view"} for key in ("size", "ways", "line")}
    parts["cache"] = {"l1d": {**level, "hit_time": {"value": "0ns", "source": "a view"}}}
    pages = machines.Machine.from_json("pages", json.dumps(parts))
    _engine.filter_view(whole, to, pages, filter="cache", progress=progress)
    return to


def waits(trace: Path, without: Sequence[str] = ()) -> tuple[int, float]:
    """A capture's number of accesses and seconds of waits, for ``papers/002/pigz.toml``.

    The waits are the busy seconds less the time of the instructions. ``without`` names caches to
    remove: ``l2``, or all for a view.
    """
    parts = machines.load(MACHINE).to_dict()
    for level in without:
        del parts["cache"][level]
    described = machines.Machine.from_json(MACHINE, json.dumps(parts))
    clock, ipc = (parts["cpu"][key]["value"] for key in ("clock", "ipc"))
    setting = Setting()
    (row,) = ssd(
        trace, machine=described, dram=["1G"], epf=["none"], precondition=(0.0, 0.0),
        atomic=setting.atomic, window=setting.window, sleep_granularity=setting.sleep,
    ).rows  # fmt: skip
    instruction_seconds = 1e-9 / (float(str(clock).removesuffix("GHz")) * float(ipc))
    return row["accesses"], row["cpu_busy"] - row["instructions"] * instruction_seconds


def _rows(pigz: _Pigz, setting: Setting, whole: bool = False) -> list[declared.Row]:
    """A row for each statement of ``papers/002/statements.toml``."""
    return measured("002", dict(_measures(pigz.run(setting, whole))).__getitem__, digits=4)


def _measures(result: SsdResult) -> Iterator[tuple[str, tuple[float, str]]]:
    """Our value and a note, by key of a statement."""
    cells = dict(zip(product(SIZES, POLICIES), result.rows, strict=True))
    long_services = {
        # The bin that contains 50 us starts at 48.
        cell: sum(interval["actual"] for interval in detail["service"]
                  if interval["low_ns"] >= 48_000)
        for cell, detail in zip(cells, result.details, strict=True)
    }  # fmt: skip
    time = {cell: row["seconds"] for cell, row in cells.items()}
    smart = POLICIES[2]
    for (size, epf), row in cells.items():
        seconds = row["seconds"]
        shares = ", ".join(
            f"{part.removeprefix('cpu_')} {units.percent(row[part] / seconds)}"
            for part in ("cpu_busy", "cpu_stall", "cpu_switch", "cpu_idle")
        )
        key = f"{epf.partition(':')[0]}-{size.removesuffix('M')}"
        yield key, (seconds, f"{shares}; {row['embedded_faults']:,} embedded faults")
    none, every, some = (time["100M", epf] for epf in POLICIES)
    yield "gain-all", (1 - every / none, "")
    yield "gain-smart", (1 - some / none, "")
    yield "faster-100", (none / max(every, some), "")
    yield "smart-first-100", (some / every, "")
    yield "all-slower-150", (time["150M", "all"] / time["150M", "none"], "")
    yield "smart-equal-150", (time["150M", smart] / time["150M", "none"], "")
    counts = [[long_services[size, epf] for size in SIZES] for epf in POLICIES]
    # Of the policies, the one with the smallest ratio.
    many, few = min(counts, key=lambda pair: pair[0] / max(pair[1], 1))
    yield "long-100", (many / max(few, 1), f"{many:,} at 100 MB, {few:,} at 150 MB")
    none_150 = cells["150M", "none"]
    note = f"{none_150['embedded_faults']:,} of {none_150['accesses']:,} accesses"
    yield "rate", (none_150["embedded_fault_rate"], note)
    for epf in POLICIES:
        row = cells["150M", epf]
        note = f"{row['passed_to_kernel']:,} of {row['embedded_faults']:,}"
        yield f"passed-{epf.partition(':')[0]}", (row["passed_share"], note)
    rates = [cells["150M", epf]["embedded_fault_rate"] for epf in POLICIES]
    yield "same-faults", (max(rates) / min(rates) if min(rates) else math.inf, "")
    full = cells["100M", "none"]
    note = f"of {full['embedded_faults']:,} in all; {full['evictions']:,} pages were evicted"
    yield "fills", (full["faults_while_filling"], note)
    blocks = full["gc_collections"]
    yield "collects", (full["gc_moved"] / max(blocks, 1), f"{blocks:,} blocks collected")
    note = f"{full['from_flash']:,} of {full['embedded_faults']:,}"
    yield "from-flash", (full["from_flash"] / max(full["embedded_faults"], 1), note)


# --- tables of the page


def _tables(pigz: _Pigz, usual: Setting, stack: ExitStack) -> Iterator[TextTable]:
    """What figure 2 lacks: predictions, thresholds, sizes of DRAM, other latencies, threads."""
    cells = [
        [
            units.size(row["dram_bytes"]),
            row["epf"],
            *(units.count(row[key]) for key in ("services", "flash_reads", "flash_programs")),
            *(units.duration(row[key] * 1e3) for key in ("predicted_us_mean", "actual_us_mean")),
            units.count(row["late_services"]),
            *(units.duration(row[key] * 1e9) for key in ("late_die", "late_channel", "late_erase")),
            units.count(row["overruns"]),
        ]
        for row in pigz.run(usual).rows
    ]
    headers = ["DRAM", "EPF", "services", "reads", "programs", "predicted", "actual", "late",
               "by dies", "by channels", "by erasing", "woke early"]  # fmt: skip
    yield _table(
        "Service times: predicted from counted reads and programs, actual, and why late",
        headers,
        cells,
    )
    thresholds = [0, 10, 20, 26, 50, 100, 200, 224, 230, 300, 400]
    policies = [f"smart:{us}us" for us in thresholds]
    rows = pigz.run(usual, epf=policies).rows
    cells = [
        [f"{us} us", *(_cell(row) for row in rows if row["epf"] == policy)]
        for us, policy in zip(thresholds, policies, strict=True)
    ]
    headers = ["threshold", *(f"{size}: time, passed on" for size in SIZES)]
    yield _table("Threshold of smart_EPF", headers, cells)
    sizes = ["60M", "80M", "100M", "120M", "140M", "150M", "160M", "180M", "200M"]
    rows = pigz.run(usual, dram=sizes).rows
    cells = [
        [size, *(_cell(row) for row in rows if row["dram_bytes"] == parse_bytes(size, "dram"))]
        for size in sizes
    ]
    yield _table("Size of the DRAM: time, share of faults passed on", ["DRAM", *POLICIES], cells)
    named: tuple[tuple[str, dict[str, str | float]], ...] = (
        ("UMD (002): DDR 50 ns, flash 25/200 us", {}),
        ("CXL 170 ns, the same flash", {"node.dram.local.read_latency": "170ns"}),
        ("CXL 170 ns, low-latency flash 3/80 us",
         {"node.dram.local.read_latency": "170ns", "flash.read": "3us", "flash.program": "80us",
          "flash.erase": "1ms"}),
        ("CXL 170 ns, MLC 50/600 us",
         {"node.dram.local.read_latency": "170ns", "flash.read": "50us",
          "flash.program": "600us", "flash.erase": "3ms"}),
    )  # fmt: skip
    cells = [
        [name, *map(_cell, pigz.run(usual.changed(machine=changes), dram=["100M"]).rows)]
        for name, changes in named
    ]
    yield _table(
        "Other latencies, 100 MB: time, share of faults passed on (flash as in SkyByte, HPCA'25)",
        ["", *POLICIES],
        cells,
    )
    swapping = usual.changed(machine=_swap(), precondition=(0.0, 0.0))
    cells = [
        [
            units.size(row["dram_bytes"]),
            units.duration(row["seconds"] * 1e9),
            units.percent(row["cpu_idle"] / row["seconds"]),
            units.count(row["embedded_faults"]),
        ]
        for row in pigz.run(swapping, epf=["all"]).rows
    ]
    headers = ["DRAM", "time", "idle", "faults"]
    yield _table("No device: the same sizes of DRAM, swapping to the disk", headers, cells)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearfar-")))
    cells = []
    for threads in (1, 2, 4, 8, 16):
        trace = folder / f"{threads}.trace"
        generate("zipf", trace, refs=160_000, pages=4000, threads=threads, write_ratio=0.3, seed=1)
        rows = ssd(trace, dram=["8M"], threads=pigz.threads, progress=pigz.progress).rows
        cells.append([str(threads), *map(_cell, rows)])
    title = (
        "Threads of a synthetic mix: Zipf references to 4,000 pages, 8 MiB of DRAM; time, "
        "share of faults passed on"
    )
    yield _table(title, ["threads", *POLICIES], cells)


def _swap() -> dict[str, str | float]:
    """Changes of the machine: its flash becomes its disk, which swaps one page at a time."""
    disk = machines.load(MACHINE).to_dict()["storage"]["hdd"]["hdd"]
    half_turn = 30 / float(str(disk["rotation"]["value"]).removesuffix("rpm"))
    page = 4096 / 1e6 / float(str(disk["bandwidth"]["value"]).removesuffix("MB/s"))
    read, write = (
        parse_time(disk[key]["value"], key) / 1e9 + half_turn + page
        for key in ("seek", "write_seek")
    )
    return {
        "flash.read": f"{read * 1e6:.0f}us", "flash.program": f"{write * 1e6:.0f}us",
        "flash.erase": "0ns", "flash.channels": 1, "flash.dies_per_channel": 1,
        # As many blocks as the planes of UMD have together.
        "flash.blocks_per_plane": 8760, "flash.stripe": 1,
    }  # fmt: skip


def _cell(row: ssd_declared.Row) -> str:
    return f"{row['seconds']:.3f} s, {units.percent(row['passed_share'])}"


def _table(title: str, headers: Sequence[str], cells: list[list[str]]) -> TextTable:
    return {"title": title, "headers": list(headers), "rows": cells}
