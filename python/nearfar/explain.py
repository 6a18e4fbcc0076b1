"""``explain``: from a number of a paging run down to terms, regions, addresses and code behind it.

A run of ``--view machine`` says itself what each part of the time is: its row is put beside that of
4 KiB pages. Otherwise the access-time model of page-size advice (000, equations 1 to 3) is written
out with the values of the run. Then the trace that the run names is simulated once more at one page
size and memory size, each TLB miss and page fault counted where it happened
(``crates/study/src/paging/explain.rs``), and code is named (:mod:`nearfar.symbols`).
Sums that differ from the run's counts are an error.

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
from typing import Any, Final, TypedDict, Unpack

from nearfar import _engine, regions, units
from nearfar import paging_findings as findings
from nearfar.declared import explain as declared
from nearfar.declared import paging as paging_declared
from nearfar.errors import NearfarError
from nearfar.filter import view
from nearfar.machine import Machine
from nearfar.paging import PagingResult
from nearfar.result import Result
from nearfar.run_folder import open_run
from nearfar.schema import Column, Rows, takes
from nearfar.sizes import parse_memory
from nearfar.strict import parse_json, read_trace
from nearfar.symbols import Symbols, by_line

Row = Mapping[str, Any]

#: Pieces of code, and lines of functions, that a result has; the rest are one.
_SITES: Final = 256
_LINES: Final = 4096
#: Parts of the time as a machine spends it that are T_A.
_TRANSLATION: Final = ("tlb_ns", "walk_ns")


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
    #: ``paper`` or ``machine``: the ``--view`` of the run.
    times: str
    #: The time with 4 KiB pages, as a machine spends it; None without such a row.
    usual_ns: float | None
    sample: float | None
    lifetimes: bool


#: What happened somewhere.
_COUNTS: Final = (
    Column("references", "int64", False, "", "References; 0 of code, whose own are not counted."),
    Column("tlb_misses", "int64", False, "", "Page walks.", "TLB misses"),
    Column("tlb_second_hits", "int64", False, "", "First-level TLB misses that the second has."),
    Column("faults", "int64", False, "", "Page faults."),
    Column("first_touches", "int64", False, "", "References to pages never touched before.",
           "first touch"),
    Column("zero_fills", "int64", False, "", "Faults on pages that are filled with zeros."),
    Column("file_reads", "int64", False, "", "Faults that read a page of a file the first time."),
    Column("swap_ins", "int64", False, "", "Faults that read a page back from swap."),
    Column("file_rereads", "int64", False, "", "Faults that read a page of a file again."),
    Column("mapped", "int64", False, "", "First references to pages of files that a warm page "
           "cache held: no faults."),
)  # fmt: skip
_REGION: Final = Column("name", "string", False, "", "Its region.", "region")
_COSTS: Final = (
    Column("ns", "double", False, "ns", "What this adds to the mean time of a reference.", "time"),
    Column("share", "double", False, "", "Its part of all such time."),
)
_PLACES: Final = Rows(
    columns=(
        _REGION,
        Column("addr_low", "string", False, "", "First byte; in a table as hexadecimal text.",
               "addresses", python="int"),
        Column("addr_high", "string", False, "", "Byte after the last.", python="int"),
        *_COUNTS,
        *_COSTS,
    ),
    keys=("name", "addr_low"),
    metrics={"ns": "less"},
)  # fmt: skip
#: ``make declared`` writes them as ``nearfar.declared.explain``.
TABLES: Final = {
    "rows": _PLACES,
    "terms": Rows(
        columns=(
            Column("term", "string", False, "", "What the time is for."),
            Column("part", "string", False, "", "`T_A` or `T_D`."),
            Column("formula", "string", True, "", "The term of the equation. This and the two "
                   "after it are null of a run with `--view machine`."),
            Column("rate", "double", True, "per reference", "How often."),
            Column("each_ns", "double", True, "ns", "Time of each."),
            _COSTS[0],
            Column("share", "double", False, "", "Its part of `total_ns`."),
            Column("usual_ns", "double", True, "ns", "The same with 4 KiB pages. This and the two "
                   "after it are null but for another size of a run with `--view machine` that has "
                   "4 KiB.", "4 KiB"),
            Column("saved_ns", "double", True, "ns", "`usual_ns` - `ns`.", "saved"),
            Column("gain", "double", True, "", "What that is of the whole time with 4 KiB pages: "
                   "its part of the gain."),
        ),
        keys=("term",),
        metrics={"ns": "less"},
    ),
    "sites": Rows(
        columns=(
            _REGION,
            Column("addr", "string", True, "", "First byte of its block of instructions; null: "
                   "all further ones.", "code", python="int"),
            *_COUNTS,
            *_COSTS,
        ),
        keys=("name", "addr"),
        metrics={"ns": "less"},
    ),
    "functions": Rows(
        columns=(
            Column("program", "string", False, "", "The program that ran it."),
            Column("library", "string", False, "", "The file that it is of, or its region.",
                   "library"),
            Column("function", "string", False, "", "Its name; without one the address in the file "
                   "where it begins."),
            Column("file", "string", True, "", "Source file.", "source"),
            Column("line", "int64", True, "", "Line of it."),
            *_COUNTS,
            *_COSTS,
        ),
        keys=("program", "library", "function", "file", "line"),
        metrics={"ns": "less"},
    ),
    "sizes": regions.SIZES,
    "total": Rows(columns=_COUNTS, keys=(), metrics={}),
}  # fmt: skip


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
        functions: the same by program, library, function and line, most first.
        sizes: each region at each page size, if ``by_region`` was asked for.
        notes: what could not be named, and why.
    """

    shown = "nearfar.report.explain:explain"
    page = "nearfar.report.html.explain:ExplainPage"
    chart = "nearfar.report.plots.explain:draw"
    plain = (
        "run", "terms", "total", "regions", "ranges", "sites", "functions", "sizes", "notes"
    )  # fmt: skip

    run: ExplainRun
    terms: list[declared.TermsRow]
    total: declared.TotalRow
    regions: list[declared.Row]
    ranges: list[declared.Row]
    sites: list[declared.SitesRow]
    functions: list[declared.FunctionsRow]
    sizes: list[declared.SizesRow]
    notes: list[str]

    @property
    def table(self) -> Any:
        """The regions as a ``pyarrow.Table``; addresses as hexadecimal text.

        With ``by_region`` these at each page size.
        """
        if self.sizes:
            return declared.SIZES_ROWS.table(self.sizes)
        return declared.ROWS.table(
            [
                {**row, "addr_low": hex(row["addr_low"]), "addr_high": hex(row["addr_high"])}
                for row in self.regions
            ]
        )


@takes(declared.OPTIONS)
def explain(
    run: str | Path,
    *,
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
    asked = json.loads(_engine.explain_options(options=options))
    rows = _rows(result, asked["memory"], asked["storage"])
    row = _row(rows, asked["page"])
    made, kept = result.run, result.run["options"]
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
        "times": kept.get("view", "paper"),
        "usual_ns": None,
        "sample": kept["sample"],
        "lifetimes": made.get("pages_end", False),
    }
    on_machine = answer["times"] == "machine"
    if asked["by_region"] and not on_machine:
        raise NearfarError(
            f"{opened.path}: --by-region takes a run of --view machine, which has pages as Linux "
            "gives them; run nearfar paging with it"
        )
    if "machines" in made:
        raise NearfarError(
            f"{opened.path}: compares {', '.join(made['machines'])}; run nearfar paging with one "
            "machine, to explain its times"
        )
    machine = Machine.from_json(made["machine"], json.dumps(made["machine_description"]))
    trace = _trace(made)
    terms: list[declared.TermsRow]
    sizes: list[declared.SizesRow] = []
    with view(trace, kept["filter"], machine, progress) as seen:
        if on_machine:
            usual = _usual(rows, row)
            answer["usual_ns"] = None if usual is None else usual["total_ns"]
            terms = _parts(row, usual)
            smallest = min(one["page_bytes"] for one in rows)
            found = regions.count(seen.path, machine, kept, row, smallest, progress)
            answer["lifetimes"] = found["lifetimes"]
            if asked["by_region"]:
                counted = {row["page_bytes"]: found}
                made_sizes: list[Any] = regions.by_region(
                    seen.path, machine, kept, rows, progress, counted
                )
                sizes = made_sizes
        else:
            found, terms = _by_the_model(opened.path, seen.path, kept, row, machine, progress)
            answer["lifetimes"] = found["lifetimes"]
    total = found["total"]
    whole = total.get("ns", 0.0)
    for place in (*found["regions"], *found["ranges"], *found["sites"]):
        place["share"] = place["ns"] / whole if whole else 0.0
    found["regions"].sort(key=lambda place: -place["ns"])
    # Behind CPU caches a miss no longer follows the fetch of the code that made it.
    filtered = findings.filtered(result.to_dict())
    by_code = [] if filtered else found["sites"]
    by_code.sort(key=lambda site: (site["addr"] is None, -site["ns"]))
    info = parse_json(read_trace(trace))
    symbols = Symbols(info.get("build_ids", {}), asked["symbols"] or (), trace.glob("perf-*.map"))
    counts = [column.name for column in (*_COUNTS, *_COSTS)]
    lines = by_line(by_code, symbols, info["source"]["command"], counts)
    functions = _listed(lines, _LINES, {"library": "(others)", "function": "", "file": None,
                                        "line": None})  # fmt: skip
    notes = symbols.notes
    if filtered:
        notes = ["the run counted references that miss CPU caches, which no longer follow the code "
                 "that made them: nothing is said of code"]  # fmt: skip
    elif not by_code:
        notes = ["this capture has no instruction fetches: nothing is said of code; capture "
                 "without --no-fetch"]  # fmt: skip
    return ExplainResult(
        answer,
        terms,
        _plain(total, declared.TOTAL_ROWS),
        [_plain(place, declared.ROWS) for place in found["regions"]],
        [_plain(place, declared.ROWS) for place in found["ranges"]],
        _listed([_plain(site, declared.SITES_ROWS) for site in by_code], _SITES,
                {"name": "(others)", "addr": None}),
        functions,
        sizes,
        notes,
    )  # fmt: skip


def _plain(place: Mapping[str, Any], rows: Rows) -> Any:
    """What a row of a result has of a place of the engine."""
    return {column.name: place[column.name] for column in rows.columns}


def _listed(places: list[Any], limit: int, others: Mapping[str, Any]) -> list[Any]:
    """The first places, and the rest as one that is called ``others``."""
    rest = places[limit:]
    if not rest:
        return places
    counts = [column.name for column in (*_COUNTS, *_COSTS)]
    return [
        *places[:limit],
        {**places[0], **others, **{name: sum(one[name] for one in rest) for name in counts}},
    ]


def _by_the_model(
    folder: Path,
    trace: Path,
    kept: Mapping[str, Any],
    row: Row,
    machine: Machine,
    progress: Callable[[int], None] | None,
) -> tuple[Any, list[declared.TermsRow]]:
    """What references meet, counted with the run's TLB, and the terms of the equations."""
    asked = regions.options_of(kept, row, row["page_bytes"])
    found = json.loads(_engine.paging_explain(trace, options=asked, progress=progress))
    lifetimes: bool = found["lifetimes"]
    total: declared.TotalRow = found["total"]
    warm = lifetimes and kept.get("page_cache") == "warm"
    places = (found["total"], *found["regions"], *found["ranges"], *found["sites"])
    for place in places:
        _as_the_study_counts(place, warm=warm)
    if kept["sample"] is None:
        # Rows of older versions may not say the kinds.
        _check(folder, row, total, by_kind=lifetimes and row.get("zero_fills") is not None)
    times = _Times.of(machine, row["storage"], row["page_bytes"], lifetimes)
    for place in places:
        place["ns"] = times.ns(place) / total["references"]
    return found, _terms(row, total, times, bool(kept["write_back"]))


# --- as a machine spends it


def _usual(rows: Sequence[Row], row: Row) -> Mapping[str, float] | None:
    """The times of 4 KiB pages beside this row, if it is another and the run has them."""
    if row["page_bytes"] == findings.USUAL_PAGE:
        return None
    found = next((one for one in rows if one["page_bytes"] == findings.USUAL_PAGE), None)
    return found and {part: found[part] for part in (*findings.PARTS, "total_ns")}


def _parts(row: Row, usual: Mapping[str, float] | None) -> list[declared.TermsRow]:
    """The parts of the time of a row, beside those of 4 KiB pages."""
    terms: list[declared.TermsRow] = []
    for part in findings.PARTS:
        term: declared.TermsRow = {
            "term": paging_declared.ROWS.head(part),
            "part": "T_A" if part in _TRANSLATION else "T_D",
            "formula": None,
            "rate": None,
            "each_ns": None,
            "ns": row[part],
            "share": row[part] / row["total_ns"],
            "usual_ns": None,
            "saved_ns": None,
            "gain": None,
        }
        if usual is not None:
            same = math.isclose(usual[part], row[part], rel_tol=1e-12)
            saved = 0.0 if same else usual[part] - row[part]
            term["usual_ns"], term["saved_ns"] = usual[part], saved
            term["gain"] = saved / usual["total_ns"]
        terms.append(term)
    return terms


# --- the row


def _rows(result: PagingResult, memory: str | None, storage: str | None) -> list[Row]:
    """The rows of all page sizes at the memory and the storage that are asked for."""
    rows: Sequence[Row] = result.rows
    if memory is None:
        answered = findings.answered_memory(result.to_dict())
        rows = [row for row in rows if findings.memory_of(row) == answered]
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
    return [row for row in rows if row["storage"] == device]


def _row(rows: Sequence[Row], page: int | None) -> Row:
    """The row of a page size, or the one with the least time."""
    if page is None:
        return min(rows, key=lambda row: (row["total_ns"], row["page_bytes"]))
    found = next((row for row in rows if row["page_bytes"] == page), None)
    if found is None:
        known = ", ".join(units.size(row["page_bytes"]) for row in rows)
        raise NearfarError(f"--page: {units.size(page)} is not in this run; it has {known}")
    return found


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


def _as_the_study_counts(place: declared.TotalRow, *, warm: bool) -> None:
    """Put the faults of a place under the kinds that the study has them under."""
    place["mapped"] = place["file_reads"] if warm else 0
    place["file_reads"] -= place["mapped"]
    place["faults"] -= place["mapped"]


def _check(folder: Path, row: Row, total: declared.TotalRow, *, by_kind: bool) -> None:
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
class _Times:
    """Nanoseconds of what a reference can meet."""

    tlb: float
    second: float
    dram: float
    read: float
    write: float
    #: Of each kind of fault: what it is, its rate and time as a formula, and that time.
    faults: Mapping[str, tuple[str, str, float]]

    @classmethod
    def of(cls, machine: Machine, storage: str, page_bytes: int, lifetimes: bool) -> _Times:
        access = machine.access_times()
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
        return cls(access.tlb_ns, access.stlb_ns or 0.0, access.dram_ns, read, write, faults)

    def ns(self, counts: Mapping[str, Any]) -> float:
        """Nanoseconds that misses and faults cost."""
        spent = counts["tlb_misses"] * self.dram + counts["tlb_second_hits"] * self.second
        kinds: Mapping[str, int] = {kind: counts[kind] for kind in self.faults}
        return float(spent + sum(kinds[kind] * each for kind, (_, _, each) in self.faults.items()))


def _terms(
    row: Row, total: declared.TotalRow, times: _Times, write_back: bool
) -> list[declared.TermsRow]:
    """Equations 1 to 3 of 000, their sums multiplied out, with the values of the row."""
    size = units.size(row["page_bytes"])
    second = row["tlb_second_hits"] / row["references"]
    dirty = row["dirty_evictions"] / row["references"]
    listed = [
        ("TLB lookup", "T_A", "t_TLB", 1.0, times.tlb),
        ("second TLB level", "T_A", "h t_STLB", second, times.second),
        ("TLB misses", "T_A", "e t_DRAM", row["tlb_miss_rate"], times.dram),
        ("memory access", "T_D", "t_DRAM", 1.0, times.dram),
    ]
    found: Mapping[str, Any] = total
    for kind, (what, formula, each) in times.faults.items():
        # The row does not say how many pages were mapped.
        count = row.get(kind)
        rate = (found[kind] if count is None else count) / row["references"]
        if rate or kind == "faults":
            listed.append((what, "T_D", formula, rate, each))
    if write_back:
        listed.append(("write-backs", "T_D", f"w t_write({size})", dirty, times.write))
    return [
        {
            "term": term,
            "part": part,
            "formula": formula,
            "rate": rate,
            "each_ns": each,
            "ns": rate * each,
            "share": rate * each / row["total_ns"],
            "usual_ns": None,
            "saved_ns": None,
            "gain": None,
        }
        for term, part, formula, rate, each in listed
        if term != "second TLB level" or row["tlb_second_hits"]
    ]
