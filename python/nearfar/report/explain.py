"""Tables of ``explain``."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import explain as declared
from nearfar.explain import ExplainResult
from nearfar.report.fitted import Table
from nearfar.report.tables import listing

#: The number of regions and functions that tables show, and that of ranges and pieces of code.
SHOWN = (12, 6)


def explain(result: ExplainResult, by_function: bool = False) -> RenderableType:
    """The terms of the time, then where its misses and faults come from."""
    run = result.run
    memory = findings.memory_of(run).label
    head = (
        f"{run['trace']}, {units.size(run['page_bytes'])} pages, {memory} memory, "
        f"{run['storage']}: {units.duration(run['total_ns'])} per reference"
    )
    if run["usual_ns"] is not None:
        head += f", {change(run['total_ns'], run['usual_ns'])} than 4 KiB in the whole run"
    terms = _spent(result) if run["times"] == "machine" else _terms(result.terms)
    parts: list[RenderableType] = [Text(units.clean(head), style="bold"), Text(""), terms]
    if result.sizes:
        parts += [Text(""), *sizes(result.sizes)]
    if by_function:
        parts += [Text(""), *_functions(result)]
    else:
        parts += [Text(""), _regions(result.regions), Text(""), _ranges(result.ranges)]
        if result.sites:
            parts += [Text(""), _sites(result.sites)]
    return Group(*parts)


def change(total_ns: float, usual_ns: float) -> str:
    """The change from one time to another: ``12 % less``."""
    share = 1 - total_ns / usual_ns
    return f"{units.percent(abs(share))} {'less' if share >= 0 else 'more'}"


def _spent(result: ExplainResult) -> Table:
    """Parts of the time as a machine spends it, beside those with 4 KiB pages."""
    total, usual = result.run["total_ns"], result.run["usual_ns"]
    saved = None if usual is None else usual - total
    whole: declared.TermsRow = {
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
    heads, rows = term_cells(result, [*result.terms, whole])
    return listing("Time per reference as the machine spends it", heads, rows)


def term_cells(
    result: ExplainResult, terms: Sequence[declared.TermsRow]
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of the table of terms: times and shares, or times beside those of 4 KiB."""
    if result.run["usual_ns"] is None:
        heads = declared.TERMS_ROWS.heads("term", "ns", "share")
        cells = [
            [term["term"], units.duration(term["ns"]), units.percent(term["share"])]
            for term in terms
        ]
        return _with_kernel(terms, heads, cells)
    heads = declared.TERMS_ROWS.heads("term", "usual_ns", "ns", "saved_ns", "gain")
    heads[2] = units.size(result.run["page_bytes"])
    cells = [
        [
            term["term"],
            units.duration(term["usual_ns"] or 0),
            units.duration(term["ns"]),
            units.duration(term["saved_ns"] or 0),
            units.percent(term["gain"] or 0),
        ]
        for term in terms
    ]
    return _with_kernel(terms, heads, cells)


def _with_kernel(
    terms: Sequence[declared.TermsRow], heads: list[str], cells: list[list[str]]
) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of terms, with the kernel's share if it is known."""
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
    """The page size that each region needs, and the memory that it adds.

    Args:
        rows: each region at each page size.
        of: such as " of web1", if there are several VMs.
    """
    larger, rest = larger_pages(rows)
    cells = [
        [
            units.size(row["page_bytes"]),
            units.percent(row["saved_share"]),
            units.duration(row["saved_ns"]),
            units.size(row["resident_bytes"]),
            units.size(row["added_bytes"]),
            row["name"],
        ]
        for row in larger
    ]
    line = f"{rest} {'other regions' if larger else 'regions'}: 4 KiB, larger pages gain nothing."
    heads = declared.SIZES_ROWS.heads(
        "page_bytes", "saved_share", "saved_ns", "resident_bytes", "added_bytes", "name"
    )
    title = f"Regions{of} that gain by larger pages, and the memory that these add"
    return [
        *([listing(title, heads, cells, places=True)] if cells else []),
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


def source(line: declared.FunctionsRow) -> str:
    """The source file, without its folders, and the line; empty if unknown."""
    return f"{line['file'].rpartition('/')[2]}:{line['line']}" if line["file"] else ""


def _functions(result: ExplainResult) -> list[RenderableType]:
    """Functions, most expensive first, and notes on code without names."""
    rows = [
        [
            function["function"],
            units.count(function["tlb_misses"]),
            units.count(function["faults"]),
            units.duration(function["ns"]),
            units.percent(function["share"]),
            source(function),
            function["library"].rpartition("/")[2],
        ]
        for function in [f for f in functions(result.functions) if f["ns"] > 0][: SHOWN[0]]
    ]
    heads = declared.FUNCTIONS_ROWS.heads(
        "function", "tlb_misses", "faults", "ns", "share", "line", "library"
    )
    parts: list[RenderableType] = []
    if result.functions:
        title = (
            "Where the misses and faults come from: functions, each with its most expensive line"
        )
        parts.append(listing(title, heads, rows))
    parts += [Text(units.clean(note)) for note in result.notes]
    return parts


def _terms(terms: Sequence[declared.TermsRow]) -> Table:
    rows = [
        [
            term["part"],
            term["term"],
            term["formula"] or "",
            "1" if term["rate"] == 1 else units.rate(term["rate"] or 0),
            units.duration(term["each_ns"] or 0),
            units.duration(term["ns"]),
            units.percent(term["share"]),
        ]
        for term in terms
    ]
    title = "T_total = T_A + T_D per reference, equations 1 to 3 of page-size advice (000)"
    heads = declared.TERMS_ROWS.heads("part", "term", "formula", "rate", "each_ns", "ns", "share")
    return listing(title, *_with_kernel(terms, heads, rows))


def _regions(regions: Sequence[declared.Row]) -> Table:
    return _places("Where the misses and faults are, by region", regions)


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
    """Regions, which have names, or places with their ``addresses`` in a column ``head``."""
    rows: list[list[str]] = []
    for number, place in enumerate(places):
        if place["ns"] > 0 and len(rows) < SHOWN[bool(addresses)]:
            counts = [
                units.count(place["tlb_misses"]),
                units.count(place["faults"]),
                units.count(place["first_touches"]),
                units.duration(place["ns"]),
                units.percent(place["share"]),
            ]
            rows.append([*addresses[number : number + 1], *counts, place["name"]])
    heads = declared.ROWS.heads("tlb_misses", "faults", "first_touches", "ns", "share", "name")
    details = declared.ROWS.heads("first_touches")
    return listing(title, [*([head] if head else []), *heads], rows, details, places=True)
