"""``explain``: the terms, regions, addresses and code behind a number of a paging run.

With ``--view machine``, a row of a run has the parts of its time, which are shown beside those of
4 KiB pages; otherwise :mod:`nearfar.explain_terms` computes the terms of the access-time model. The
trace is simulated again at the row's page and memory size, to count TLB misses and page faults
where they occur (``crates/study/src/paging/explain.rs``); :mod:`nearfar.symbols` names the code.
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
from typing import TYPE_CHECKING, Final, TypedDict, TypeVar, Unpack, cast

from nearfar import _engine, regions, units
from nearfar import paging_findings as findings
from nearfar.declared import explain as declared
from nearfar.declared import paging as paging_declared
from nearfar.errors import NearfarError
from nearfar.explain_terms import (
    KINDS,
    Term,
    cost_ns,
    kernel_shares,
    machine_terms,
    model_terms,
    rows_of,
)
from nearfar.filter import view
from nearfar.machine import Machine
from nearfar.page_choice import USUAL_PAGE, choose, usual_row
from nearfar.paging import PagingResult, PagingRun, counts_whole
from nearfar.regions import Explained
from nearfar.result import Result
from nearfar.run_folder import open_run
from nearfar.schema import Rows, takes
from nearfar.sizes import parse_memory
from nearfar.strict import parse_json, read_trace
from nearfar.symbols import Costs, Symbols, add, by_line

if TYPE_CHECKING:
    import pyarrow

R = TypeVar("R", bound=Costs)

#: Maximum blocks of code, and maximum source lines, in a result; a last row sums up the others.
_SITES: Final = 256
_LINES: Final = 4096


class ExplainRun(TypedDict):
    """The run and the row that is explained."""

    folder: str
    trace: str
    #: The references that the run counts, in words.
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
    #: The time with 4 KiB pages, with ``--view machine``; None if this row has 4 KiB pages, or no
    #: row has.
    usual_ns: float | None
    #: Whether events of the trace free pages.
    lifetimes: bool


@dataclass(frozen=True)
class ExplainResult(Result):
    """The parts of the time of a row of a run.

    Attributes:
        run: the folder, the trace, and the row: page size, memory size, storage.
        terms: the parts of the time of a reference; they add up to ``total_ns``.
        total: counts of the whole run.
        regions: counts by region, most expensive first; ``ns``: their time per reference of the
            program; ``share``: its share of the time of all regions.
        ranges: counts by address range, lowest first.
        sites: counts by block of instructions, most expensive first: ``name`` of its region,
            ``addr`` (None: all further blocks); empty if the trace has no fetches, or the run
            counted only references that miss CPU caches.
        functions: counts by program, library, function and line, most expensive first.
        sizes: each region at each page size, with ``by_region``.
        notes: code without names, and why.
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
    def table(self) -> pyarrow.Table:
        """The regions with hexadecimal addresses; with ``by_region``, at each page size."""
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
    """Explain the time of a row of a paging run.

    Args:
        run: folder that ``nearfar paging -o`` wrote; the trace that it names must still exist.
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
    given = json.loads(_engine.explain_options(options=options))
    rows = _rows(result, given["memory"], given["storage"])
    page = given["page"] or choose(rows, whole=counts_whole(result.run)).page_bytes
    row = _row(rows, page)
    paging_run, run_options = result.run, result.run["options"]
    explained: ExplainRun = {
        "folder": str(opened.path),
        "trace": paging_run["trace"],
        "view": paging_run["view"],
        "machine": paging_run["machine"],
        "storage": row["storage"],
        "page_bytes": row["page_bytes"],
        "memory_bytes": row["memory_bytes"],
        "memory_fraction": row["memory_fraction"],
        "frames": row["frames"],
        "total_ns": row["total_ns"],
        "times": run_options.get("view", "paper"),
        "usual_ns": None,
        "lifetimes": False,
    }
    on_machine = explained["times"] == "machine"
    if given["by_region"] and not on_machine:
        raise NearfarError(
            f"{opened.path}: --by-region takes a run of --view machine, which has pages as Linux "
            "gives them; run nearfar paging with it"
        )
    if "machines" in paging_run:
        raise NearfarError(
            f"{opened.path}: compares {', '.join(paging_run['machines'])}; run nearfar paging with "
            "one machine, to explain its times"
        )
    machine = Machine.from_json(
        paging_run["machine"], json.dumps(paging_run["machine_description"])
    )
    trace = _trace(paging_run, opened.path)
    info = parse_json(read_trace(trace))
    of_vm = bool(info["source"].get("vm_memory_bytes"))
    sizes: list[declared.SizesRow] = []
    with view(trace, run_options["filter"], machine, progress) as viewed:
        if on_machine:
            usual = None if page == USUAL_PAGE else usual_row(rows)
            explained["usual_ns"] = None if usual is None else usual["total_ns"]
            smallest = min(row["page_bytes"] for row in rows)
            wanted = rows if given["by_region"] else [row]
            results = regions.count(viewed.path, machine, run_options, wanted, smallest, progress)
            counts = results[wanted.index(row)]
            shares = kernel_shares(counts, info["instructions"]) if of_vm else {}
            terms = machine_terms(row, usual, shares)
            if given["by_region"]:
                sizes = regions.by_region(
                    viewed.path, machine, run_options, rows, progress, results
                )
        else:
            counts, model = _by_model(opened.path, viewed.path, run_options, row, machine, progress)
            terms = rows_of(model, row["total_ns"], counts, of_vm=of_vm)
    explained["lifetimes"] = counts["lifetimes"]
    whole_ns = counts["total"]["ns"]
    for place in regions.all_counts(counts):
        place["share"] = place["ns"] / whole_ns if whole_ns else 0.0
    counts["regions"].sort(key=lambda place: -place["ns"])
    # References that miss CPU caches no longer follow the fetch of the code that made them.
    filtered = findings.filtered(paging_run)
    by_code = [] if filtered else counts["sites"]
    by_code.sort(key=lambda site: (site["addr"] is None, -site["ns"]))
    symbols = Symbols(info.get("build_ids", {}), given["symbols"] or (), trace.glob("perf-*.map"))
    functions = _limited(
        by_line(by_code, symbols, info["source"]["command"]),
        _LINES,
        {"library": "(others)", "function": "", "file": None, "line": None},
    )
    sites = _limited(
        cast("list[declared.SitesRow]", _columns(by_code, declared.SITES_ROWS)),
        _SITES,
        {"name": "(others)", "addr": None},
    )
    notes = symbols.notes
    if filtered:
        notes = ["the run counted only references that miss CPU caches (--filter), which cannot "
                 "be attributed to code: code is not shown"]  # fmt: skip
    elif not by_code:
        notes = ["this capture has no instruction fetches: code is not shown; capture "
                 "without --no-fetch"]  # fmt: skip
    (total,) = _columns([counts["total"]], declared.TOTAL_ROWS)
    return ExplainResult(
        explained,
        terms,
        cast("declared.TotalRow", total),
        cast("list[declared.Row]", _columns(counts["regions"], declared.ROWS)),
        cast("list[declared.Row]", _columns(counts["ranges"], declared.ROWS)),
        sites,
        functions,
        sizes,
        notes,
    )


def _columns(places: Sequence[Mapping[str, object]], rows: Rows) -> list[dict[str, object]]:
    """Only the columns of ``rows``. ``places``: regions, ranges, blocks of code, or the total."""
    return [{column.name: place[column.name] for column in rows.columns} for place in places]


def _limited(rows: list[R], limit: int, others: Mapping[str, object]) -> list[R]:
    """At most ``limit`` rows, then one with ``others`` and the sums of the remaining rows."""
    if len(rows) <= limit:
        return rows
    rest = cast("R", {**rows[limit], **others})
    for row in rows[limit + 1 :]:
        add(rest, row)
    return [*rows[:limit], rest]


def _by_model(
    folder: Path,
    trace: Path,
    run_options: Mapping[str, object],
    row: paging_declared.Row,
    machine: Machine,
    progress: Callable[[int], None] | None,
) -> tuple[Explained, list[Term]]:
    """Counts with the run's TLB, and the terms of the access-time model."""
    options = regions.options_of(run_options, row, row["page_bytes"])
    text = _engine.paging_explain(trace, options=options, progress=progress)
    counts: Explained = json.loads(text)
    lifetimes, total = counts["lifetimes"], counts["total"]
    warm = lifetimes and run_options.get("page_cache") == "warm"
    for place in regions.all_counts(counts):
        # As in the study, references to files in the page cache are no faults.
        place["mapped"] = place["file_reads"] if warm else 0
        place["file_reads"] -= place["mapped"]
        place["faults"] -= place["mapped"]
    # Rows of older versions may not have kinds of faults.
    _check(folder, row, total, by_kind=lifetimes and row.get("zero_fills") is not None)
    terms = model_terms(machine, row, total, lifetimes, bool(run_options["write_back"]))
    for place in regions.all_counts(counts):
        place["ns"] = cost_ns(place, terms) / total["references"]
    return counts, terms


def _rows(
    result: PagingResult, memory: str | None, storage: str | None
) -> list[paging_declared.Row]:
    """The rows of all page sizes with the requested memory and storage."""
    if memory is None:
        chosen = findings.answered_memory(result)
        rows = [row for row in result.rows if findings.memory_of(row) == chosen]
    else:
        sizes = parse_memory(memory)
        if len(sizes) != 1:
            raise NearfarError(f"--memory: {memory[:40]!r} is not one size; give such as 50%")
        (size,) = sizes
        rows = [
            row
            for row in result.rows
            for value in [row["memory_fraction" if size.is_fraction else "memory_bytes"]]
            if value is not None and math.isclose(value, size.value, rel_tol=1e-9)
        ]
        if not rows:
            known = ", ".join(memory.label for memory in findings.memories(result))
            raise NearfarError(f"--memory: {memory[:40]} is not in this run; it has {known}")
    devices = list(dict.fromkeys(row["storage"] for row in rows))
    device = devices[0] if storage is None else storage
    if device not in devices:
        raise NearfarError(
            f"--storage: {device[:40]!r} is not in this run; it has {', '.join(devices)}"
        )
    return [row for row in rows if row["storage"] == device]


def _row(rows: Sequence[paging_declared.Row], page: int) -> paging_declared.Row:
    row = next((row for row in rows if row["page_bytes"] == page), None)
    if row is None:
        known = ", ".join(units.size(row["page_bytes"]) for row in rows)
        raise NearfarError(f"--page: {units.size(page)} is not in this run; it has {known}")
    return row


def _trace(run: PagingRun, folder: Path) -> Path:
    """The trace of a run.

    Its path is tried from the current folder, the run's folder and each parent folder; then its
    name beside the run's folder.

    Raises:
        NearfarError: it does not exist, or has changed.
    """
    path, inside = Path(run["trace"]), folder.resolve()
    places = [path, *(above / path for above in (inside, *inside.parents))]
    places.append(inside.parent / path.name)
    traces = [place for place in places if (place / "trace.json").exists()]
    if not traces:
        raise NearfarError(
            f"{path}: the run's trace is not there; put it beside {folder}, or run explain in "
            f"the folder where the study ran"
        )
    for place in traces:
        if hashlib.sha256(read_trace(place)).hexdigest() == run["trace_json_sha256"]:
            return place
    raise NearfarError(f"{traces[0]}: has changed since the run; run the study again")


def _check(
    folder: Path, row: paging_declared.Row, total: declared.TotalRow, *, by_kind: bool
) -> None:
    """Compare the counts of the second simulation with those of the run.

    Raises:
        NearfarError: they differ.
    """
    counts = [
        ("references", row["references"], total["references"]),
        ("TLB misses", row["tlb_misses"], total["tlb_misses"]),
        ("second-level TLB hits", row["tlb_second_hits"], total["tlb_second_hits"]),
        ("faults", row["faults"], total["faults"]),
        ("pages", row["pages"], total["first_touches"]),
    ]
    if by_kind:
        counts += [(kind.replace("_", " "), row[kind], total[kind]) for kind in KINDS]
    for name, in_run, now in counts:
        if in_run != now:
            raise NearfarError(
                f"{folder}: the run has {in_run:,} {name}, its trace has {now:,}; run the study "
                "again with this version"
            )
