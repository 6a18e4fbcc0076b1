"""``explain``: from a number of a paging run down to terms, regions, addresses and code behind it.

The access-time model of page-size advice (000, equations 1 to 3) is written out with the values of
the run; then
the trace that the run names is simulated once more at one page size and memory size, each TLB miss
and page fault counted where it happened (``crates/study/src/paging/explain.rs``). The sums are the
run's counts, or it is an error.

>>> found = explain("app.run", page="64K")                      # doctest: +SKIP
>>> found.regions[0]["name"]                                    # doctest: +SKIP
'[heap]'
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

from nearfar import _engine, units
from nearfar import paging_findings as findings
from nearfar.declared import explain as declared
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.machine import Machine
from nearfar.paging import PagingResult
from nearfar.result import Result
from nearfar.run_folder import open_run
from nearfar.schema import takes
from nearfar.sizes import parse_memory
from nearfar.strict import read_trace

Row = Mapping[str, Any]


class ExplainRun(TypedDict):
    """Which row was taken apart."""

    folder: str
    trace: str
    view: str
    machine: str
    storage: str
    page_bytes: int
    memory_bytes: int
    memory_fraction: float | None
    frames: int
    total_ns: float
    sample: float | None
    lifetimes: bool


class Term(TypedDict):
    """A part of the time of a reference: ``T_A`` or ``T_D``; ``share`` of the whole."""

    term: str
    part: str
    formula: str
    rate: float
    each_ns: float
    ns: float
    share: float


class Counts(TypedDict):
    """What happened somewhere."""

    references: int
    tlb_misses: int
    tlb_second_hits: int
    faults: int
    first_touches: int
    zero_fills: int
    file_reads: int
    swap_ins: int
    file_rereads: int
    #: First references to pages of files that the page cache held: no faults that count.
    mapped: int


class _Costly(Counts):
    name: str
    ns: float
    share: float


class Place(_Costly):
    """A region or address range, and what its misses and faults cost."""

    addr_low: int
    addr_high: int


class Site(_Costly):
    """A piece of code, and what the misses and faults of its references cost."""

    addr: int | None


@dataclass(frozen=True)
class ExplainResult(Result):
    """A row of a run, taken apart.

    Attributes:
        run: the folder, the trace, and which row: page size, memory size, storage.
        terms: the parts of the time of a reference; they add up to ``total_ns``.
        total: counts everywhere.
        regions: the same counts by region, with the time they cost (``ns`` a reference of the
            program) and its ``share`` of all such time, most first.
        ranges: the same by address range, lowest first.
        sites: the same by the code that made the reference, most first: ``name`` of its region,
            ``addr`` of its block of instructions (None: all further ones); empty where the trace
            has no fetches, or the run counted only those that miss CPU caches.
    """

    chart = "nearfar.report.plots.explain:draw"

    run: ExplainRun
    terms: list[Term]
    total: Counts
    regions: list[Place]
    ranges: list[Place]
    sites: list[Site]

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        return {
            "run": self.run,
            "terms": self.terms,
            "total": self.total,
            "regions": self.regions,
            "ranges": self.ranges,
            "sites": self.sites,
        }

    @property
    def table(self) -> Any:
        """The regions as a ``pyarrow.Table``; addresses as hexadecimal text."""
        import pyarrow

        return pyarrow.Table.from_pylist(
            [
                {**row, "addr_low": hex(row["addr_low"]), "addr_high": hex(row["addr_high"])}
                for row in self.regions
            ]
        )


@takes(declared.OPTIONS)
def explain(
    run: str | Path,
    *,
    page: str | int,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> ExplainResult:
    """Take a row of a paging run apart.

    Args:
        run: folder that ``nearfar paging -o`` wrote; the trace it names must still be there.
        progress: called now and then with the records done.
        {options}

    Raises:
        NearfarError: no paging run, no such row, or another trace than the run's.
    """
    opened = open_run(run)
    result = opened.result
    if not isinstance(result, PagingResult):
        what = "a sweep" if opened.is_sweep else f"a run of {opened.study.name}"
        raise NearfarError(
            f"{opened.path}: is {what}; explain takes a run of paging (nearfar paging TRACE -o RUN)"
        )
    row = _row(result, **json.loads(_engine.explain_options(options={"page": page, **options})))
    made, kept = result.run, result.run["options"]
    machine = Machine.from_json(made["machine"], json.dumps(made["machine_description"]))
    trace = _trace(made)
    asked = {name: kept[name] for name in ("tlb", "replacement", "clock_insert", "kinds")}
    # In runs of older versions pages never end.
    asked["lifetimes"] = kept.get("lifetimes", "off")
    asked |= {name: kept[name] for name in ("filter", "page_cache") if name in kept}
    asked["page_sizes"] = [row["page_bytes"]]
    asked["memory"] = _memory(row)
    with view(trace, kept["filter"], machine, progress) as seen:
        found = json.loads(_engine.paging_explain(seen.path, options=asked, progress=progress))
    lifetimes: bool = found["lifetimes"]
    total: Counts = found["total"]
    warm = lifetimes and kept.get("page_cache") == "warm"
    by_kind = row.get("zero_fills") is not None
    for place in (total, *found["regions"], *found["ranges"], *found["sites"]):
        _as_the_study_counts(place, by_kind=by_kind, warm=warm)
    if kept["sample"] is None:
        _check(opened.path, row, total, by_kind=lifetimes and by_kind)
    price = _Price.of(machine, row["storage"], row["page_bytes"], lifetimes)
    answer: ExplainRun = {
        "folder": str(opened.path),
        "trace": made["trace"],
        "view": made["view"],
        "machine": made["machine"],
        "storage": row["storage"],
        "page_bytes": row["page_bytes"],
        "memory_bytes": row["memory_bytes"],
        "memory_fraction": row["memory_fraction"],
        "frames": row["frames"],
        "total_ns": row["total_ns"],
        "sample": kept["sample"],
        "lifetimes": lifetimes,
    }
    terms = _terms(row, total, price, bool(kept["write_back"]))
    regions: list[Place] = _cost(found["regions"], total, price)
    regions.sort(key=lambda place: -place["ns"])
    # Behind CPU caches a miss no longer follows the fetch of the code that made it.
    sites: list[Site] = _cost(found["sites"], total, price) if kept["filter"] == "none" else []
    sites.sort(key=lambda site: (site["addr"] is None, -site["ns"]))
    return ExplainResult(answer, terms, total, regions, _cost(found["ranges"], total, price), sites)


# --- the row


def _row(result: PagingResult, page: int, memory: str | None, storage: str | None) -> Row:
    """The row that is asked for."""
    rows: Sequence[Row] = result.rows
    sizes = sorted({row["page_bytes"] for row in rows})
    if page not in sizes:
        known = ", ".join(units.size(one) for one in sizes)
        raise NearfarError(f"--page: {units.size(page)} is not in this run; it has {known}")
    if memory is None:
        middle = findings.middle_memory(result.to_dict())
        rows = [row for row in rows if findings.memory_of(row) == middle]
    else:
        asked = parse_memory(memory)
        if len(asked) != 1:
            raise NearfarError(f"--memory: {memory[:40]!r} is not one size; give such as 50%")
        key = "memory_fraction" if asked[0].is_fraction else "memory_bytes"
        rows = [
            row
            for row in rows
            if row[key] is not None and math.isclose(row[key], asked[0].value, rel_tol=1e-9)
        ]
        if not rows:
            known = ", ".join(one.label for one in findings.memories(result.to_dict()))
            raise NearfarError(f"--memory: {memory[:40]} is not in this run; it has {known}")
    devices = list(dict.fromkeys(row["storage"] for row in rows))
    device = devices[0] if storage is None else storage
    if device not in devices:
        raise NearfarError(
            f"--storage: {device[:40]!r} is not in this run; it has {', '.join(devices)}"
        )
    return next(r for r in rows if r["page_bytes"] == page and r["storage"] == device)


def _memory(row: Row) -> str:
    """The memory size of a row as it is written."""
    fraction = row["memory_fraction"]
    return str(row["memory_bytes"]) if fraction is None else f"{fraction * 100:.15g}%"


def _trace(made: Mapping[str, Any]) -> Path:
    """The trace of the run, unchanged since."""
    trace = Path(made["trace"])
    if not (trace / "trace.json").exists():
        raise NearfarError(
            f"{trace}: the run's trace is not there; call explain where the study ran"
        )
    text = read_trace(trace)
    if hashlib.sha256(text).hexdigest() != made["trace_json_sha256"]:
        raise NearfarError(f"{trace}: is not the trace of the run any more; run the study again")
    return trace


def _as_the_study_counts(place: Counts, *, by_kind: bool, warm: bool) -> None:
    """Put the faults of a place under the kinds that the study has them under."""
    if not by_kind:
        # Under 8 frames it tells first touches from others alone.
        place["zero_fills"] = place["first_touches"] - place["file_reads"]
        place["swap_ins"] = place["faults"] - place["first_touches"]
        place["file_rereads"] = 0
    place["mapped"] = place["file_reads"] if warm else 0
    place["file_reads"] -= place["mapped"]
    place["faults"] -= place["mapped"]


def _check(folder: Path, row: Row, total: Counts, *, by_kind: bool) -> None:
    """The counts of the second simulation are those of the first."""
    counts = [
        ("references", "references"),
        ("tlb_misses", "tlb_misses"),
        ("tlb_second_hits", "tlb_second_hits"),
        ("faults", "faults"),
        ("first_touches", "pages"),
    ]
    if by_kind:
        counts += [(kind, kind) for kind in _KINDS]
    found: Mapping[str, Any] = total
    for ours, theirs in counts:
        if found[ours] != row[theirs]:
            raise NearfarError(
                f"{folder}: the run has {row[theirs]:,} {theirs.replace('_', ' ')}, its trace "
                f"gives {found[ours]:,}; run the study again with this version"
            )


# --- the model


#: Kinds of faults.
_KINDS = ("zero_fills", "file_reads", "swap_ins", "file_rereads")


@dataclass(frozen=True)
class _Price:
    """Nanoseconds of what a reference can meet."""

    tlb: float
    second: float
    dram: float
    read: float
    write: float
    #: Of each kind of fault: what it is, its rate and time as a formula, and that time.
    faults: Mapping[str, tuple[str, str, float]]

    @classmethod
    def of(cls, machine: Machine, storage: str, page_bytes: int, lifetimes: bool) -> _Price:
        times = machine.access_times()
        (read,) = machine.io_ns(storage, [page_bytes])
        (write,) = machine.write_ns(storage, [page_bytes])
        size = units.size(page_bytes)
        if lifetimes:
            kernel = machine.fault_times()
            zeros = kernel.fault_ns + kernel.zero_ns * page_bytes
            device, each = f"(t_fault + t_IO({size}))", kernel.fault_ns + read
            faults = {
                "zero_fills": ("zero fills", f"z (t_fault + t_zero({size}))", zeros),
                "file_reads": ("file reads", f"f {device}", each),
                "swap_ins": ("swap-ins", f"s {device}", each),
                "file_rereads": ("file rereads", f"r {device}", each),
                "mapped": ("page cache hits", "m t_fault", kernel.fault_ns),
            }
        else:
            faults = {"faults": ("page faults", f"d t_IO({size})", read)}
        return cls(times.tlb_ns, times.stlb_ns or 0.0, times.dram_ns, read, write, faults)


def _terms(row: Row, total: Counts, price: _Price, write_back: bool) -> list[Term]:
    """Equations 1 to 3 of 000, their sums multiplied out, with the values of the row."""
    size = units.size(row["page_bytes"])
    second = row["tlb_second_hits"] / row["references"]
    dirty = row["dirty_evictions"] / row["references"]
    listed = [
        ("TLB lookup", "T_A", "t_TLB", 1.0, price.tlb),
        ("second TLB level", "T_A", "h t_STLB", second, price.second),
        ("TLB misses", "T_A", "e t_DRAM", row["tlb_miss_rate"], price.dram),
        ("memory access", "T_D", "t_DRAM", 1.0, price.dram),
    ]
    found: Mapping[str, Any] = total
    for kind, (what, formula, each) in price.faults.items():
        # The row does not say how many pages were mapped, nor the kinds under 8 frames.
        count = row.get(kind)
        rate = (found[kind] if count is None else count) / row["references"]
        if rate or kind == "faults":
            listed.append((what, "T_D", formula, rate, each))
    if write_back:
        listed.append(("write-backs", "T_D", f"w t_write({size})", dirty, price.write))
    return [
        {
            "term": term,
            "part": part,
            "formula": formula,
            "rate": rate,
            "each_ns": each,
            "ns": rate * each,
            "share": rate * each / row["total_ns"],
        }
        for term, part, formula, rate, each in listed
        if term != "second TLB level" or row["tlb_second_hits"]
    ]


def _cost(places: Sequence[Mapping[str, Any]], total: Counts, price: _Price) -> list[Any]:
    """Places with the time that their misses and faults cost, and its share."""

    def ns(counts: Mapping[str, Any]) -> float:
        spent = counts["tlb_misses"] * price.dram + counts["tlb_second_hits"] * price.second
        kinds: Mapping[str, int] = {kind: counts[kind] for kind in price.faults}
        spent += sum(kinds[kind] * each for kind, (_, _, each) in price.faults.items())
        return float(spent / total["references"])

    whole = ns(total)
    return [
        {**place, "ns": ns(place), "share": ns(place) / whole if whole else 0.0} for place in places
    ]
