"""Tables of ``explain``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import explain as declared
from nearfar.explain import ExplainResult
from nearfar.report.cells import cells as texts
from nearfar.report.fitted import Table
from nearfar.report.tables import listing

#: Maximum number of regions or functions in a table.
_REGIONS = 12
#: Maximum number of address ranges or instructions in a table.
_RANGES = 6


def explain(result: ExplainResult, by_function: bool = False) -> RenderableType:
    """The terms of the time, then where misses and faults come from."""
    run = result.run
    memory = findings.memory_of(run).label
    head = (
        f"{run['trace']}, {units.size(run['page_bytes'])} pages, {memory} memory, "
        f"{run['storage']}: {units.duration(run['total_ns'])} per reference"
    )
    if run["usual_ns"] is not None:
        head += f"; over the whole run {change(run['total_ns'], run['usual_ns'])} than with 4 KiB"
    terms = _spent(result) if run["times"] == "machine" else _terms(result.terms)
    parts: list[RenderableType] = [Text(units.clean(head), style="bold"), Text(""), terms]
    if result.sizes:
        parts += [Text(""), *sizes(result.sizes)]
    if by_function:
        parts += [Text(""), *_functions(result)]
    else:
        title = "Where the misses and faults are, by region"
        parts += [Text(""), _places(title, result.regions), Text(""), _ranges(result.ranges)]
        if result.sites:
            parts += [Text(""), _sites(result.sites)]
    return Group(*parts)


def change(total_ns: float, usual_ns: float) -> str:
    """The change from one time to another: ``12 % less``."""
    share = 1 - total_ns / usual_ns
    return f"{units.percent(abs(share))} {'less' if share >= 0 else 'more'}"


def _spent(result: ExplainResult) -> Table:
    """The terms of ``--view machine``, with their times at 4 KiB if known, and the total."""
    total, usual = result.run["total_ns"], result.run["usual_ns"]
    saved = None if usual is None else usual - total
    sum_of_terms: declared.TermsRow = {
        "term": "total",
        "part": "",
        "formula": None,
        "rate": None,
        "each_ns": None,
        "ns": total,
        "share": 1.0,
        "kernel_share": None,
        "usual_ns": usual,
        "saved_ns": saved,
        "gain": saved / usual if saved is not None and usual else None,
    }
    heads, rows = term_cells(result, [*result.terms, sum_of_terms])
    return listing("Time per reference by term", heads, rows)


def term_cells(
    result: ExplainResult, terms: Sequence[declared.TermsRow]
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table of terms: times and shares, or times against 4 KiB pages."""
    usual = result.run["usual_ns"] is not None
    names = ["term", "usual_ns", "ns", "saved_ns", "gain"] if usual else ["term", "ns", "share"]
    heads = declared.TERMS_ROWS.heads(*names)
    if usual:
        heads[2] = units.size(result.run["page_bytes"])
    return _with_kernel(terms, heads, texts(declared.TERMS_ROWS, names, terms))


def _with_kernel(
    terms: Sequence[declared.TermsRow], heads: list[str], cells: list[list[str]]
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells, with a column for the kernel's share if it is known."""
    shares = [term["kernel_share"] for term in terms]
    if all(share is None for share in shares):
        return heads, cells
    shown = ["" if share is None else units.percent(share) for share in shares]
    head = declared.TERMS_ROWS.head("kernel_share")
    return [*heads, head], [[*row, cell] for row, cell in zip(cells, shown, strict=True)]


def larger_pages(rows: Sequence[declared.SizesRow]) -> tuple[list[declared.SizesRow], int]:
    """The regions that gain by larger pages, each at its advised size, and how many do not gain."""
    larger = [row for row in rows if row["advised"] and row["saved_ns"] > 0]
    return larger, sum(row["advised"] for row in rows) - len(larger)


def sizes(rows: Sequence[declared.SizesRow], of: str = "") -> list[RenderableType]:
    """The advised page size of each region, and the memory that it adds.

    Args:
        rows: each region at each page size.
        of: text for the title, such as " of web1"; empty with one VM.
    """
    larger, rest = larger_pages(rows)
    line = f"{rest} {'other regions' if larger else 'regions'}: 4 KiB, larger pages gain nothing."
    names = ("page_bytes", "saved_share", "saved_ns", "resident_bytes", "added_bytes", "name")
    heads, cells = declared.SIZES_ROWS.heads(*names), texts(declared.SIZES_ROWS, names, larger)
    title = f"Regions{of} that gain by larger pages, and the memory that larger pages add"
    return [
        *([listing(title, heads, cells, paths=True)] if cells else []),
        *([Text(line)] if rest else []),
    ]


def functions(lines: Sequence[declared.FunctionsRow]) -> list[declared.FunctionsRow]:
    """Functions, most expensive first, each with its most expensive line (``file``, ``line``).

    Args:
        lines: lines of functions, most expensive first.
    """
    known: dict[tuple[str, str, str], declared.FunctionsRow] = {}
    for line in lines:
        key = (line["program"], line["library"], line["function"])
        if key not in known:
            known[key] = line.copy()
            continue
        function = known[key]
        function["tlb_misses"] += line["tlb_misses"]
        function["faults"] += line["faults"]
        function["ns"] += line["ns"]
        function["share"] += line["share"]
    return sorted(known.values(), key=lambda function: -function["ns"])


def named(function: declared.FunctionsRow) -> dict[str, object]:
    """The row for tables: library without folders, ``line`` as ``FILE:LINE``, empty if unknown."""
    file, library = ((function[key] or "").rpartition("/")[2] for key in ("file", "library"))
    return {**function, "library": library, "line": f"{file}:{function['line']}" if file else ""}


def _functions(result: ExplainResult) -> list[RenderableType]:
    """Functions, most expensive first, and notes on code without names."""
    names = ("function", "tlb_misses", "faults", "ns", "share", "line", "library")
    shown = [named(f) for f in functions(result.functions) if f["ns"] > 0][:_REGIONS]
    parts: list[RenderableType] = []
    if result.functions:
        title = (
            "Where the misses and faults come from: functions, each with its most expensive line"
        )
        declaration = declared.FUNCTIONS_ROWS
        cells = texts(declaration, names, shown)
        parts.append(listing(title, declaration.heads(*names), cells))
    parts += [Text(units.clean(note)) for note in result.notes]
    return parts


def _terms(terms: Sequence[declared.TermsRow]) -> Table:
    title = "T_total = T_A + T_D per reference, equations 1 to 3 of paper 000"
    names = ("part", "term", "formula", "rate", "each_ns", "ns", "share")
    heads, rows = declared.TERMS_ROWS.heads(*names), texts(declared.TERMS_ROWS, names, terms)
    return listing(title, *_with_kernel(terms, heads, rows))


def _ranges(ranges: Sequence[declared.Row]) -> Table:
    ordered = sorted(ranges, key=lambda place: (-place["ns"], place["addr_low"]))
    addresses = [f"{place['addr_low']:#x}-{place['addr_high']:#x}" for place in ordered]
    title = "Misses and faults by address range, most expensive first"
    return _places(title, ordered, declared.ROWS.head("addr_low"), addresses)


def _sites(sites: Sequence[declared.SitesRow]) -> Table:
    addresses = ["" if site["addr"] is None else f"{site['addr']:#x}" for site in sites]
    title = "Misses and faults by the code that made the reference, most expensive first"
    return _places(title, sites, declared.SITES_ROWS.head("addr"), addresses)


def _places(
    title: str,
    places: Sequence[declared.Row] | Sequence[declared.SitesRow],
    head: str = "",
    addresses: Sequence[str] = (),
) -> Table:
    """A table of places; ``addresses``, if any, are its first column, under ``head``."""
    names = ("tlb_misses", "faults", "first_touches", "ns", "share", "name")
    rows = [
        [*addresses[number : number + 1], *cells]
        for number, cells in enumerate(texts(declared.ROWS, names, places))
        if places[number]["ns"] > 0
    ]
    heads = [*([head] if head else []), *declared.ROWS.heads(*names)]
    details, limit = declared.ROWS.heads("first_touches"), _RANGES if addresses else _REGIONS
    return listing(title, heads, rows[:limit], details, paths=True)
