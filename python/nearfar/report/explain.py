"""Tables of ``explain``, made from its result alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import explain as declared
from nearfar.report.tables import listing

#: Regions, and ranges and pieces of code, that the tables show.
SHOWN = (12, 6)


def explain(found: Mapping[str, Any], by_function: bool = False) -> RenderableType:
    """The terms of the time, then where its misses and faults come from."""
    run = found["run"]
    memory = findings.memory_of(run).label
    head = (
        f"{run['trace']}, {units.size(run['page_bytes'])} pages, {memory} memory, "
        f"{run['storage']}: {units.duration(run['total_ns'])} per reference"
    )
    parts: list[RenderableType] = []
    if run["times"] == "machine":
        parts += _spent(found, head)
    else:
        parts += [Text(units.clean(head), style="bold"), Text(""), _terms(found)]
    if found["sizes"]:
        parts += [Text(""), *sizes(found["sizes"])]
    if by_function:
        parts += [Text(""), *_functions(found)]
    else:
        parts += [Text(""), _regions(found), Text(""), _ranges(found)]
        if found["sites"]:
            parts += [Text(""), _sites(found)]
    if run["sample"] is not None:
        parts.append(Text("The run sampled pages; the counts here are of all pages."))
    return Group(*parts)


def _spent(found: Mapping[str, Any], head: str) -> list[RenderableType]:
    """Parts of the time as a machine spends it, beside 4 KiB."""
    run = found["run"]
    usual = run["usual_ns"]
    if usual is not None:
        change = 1 - run["total_ns"] / usual
        head += f", {units.percent(abs(change))} {'less' if change >= 0 else 'more'} than 4 KiB"
    keys = ["term", "ns", "share"]
    heads = declared.TERMS_ROWS.heads(*keys)
    whole = {"term": "total", "ns": run["total_ns"], "share": 1.0}
    if usual is not None:
        keys = ["term", "usual_ns", "ns", "saved_ns", "gain"]
        heads = declared.TERMS_ROWS.heads(*keys)
        heads[keys.index("ns")] = units.size(run["page_bytes"])
        saved = usual - run["total_ns"]
        whole |= {"usual_ns": usual, "saved_ns": saved, "gain": saved / usual}
    rows = [
        [
            term["term"],
            *(
                units.percent(term[key]) if key in ("share", "gain") else units.duration(term[key])
                for key in keys[1:]
            ),
        ]
        for term in (*found["terms"], whole)
    ]
    table = listing("Time per reference as the machine spends it", heads, rows)
    return [Text(units.clean(head), style="bold"), Text(""), table]


def sizes(found: Sequence[Mapping[str, Any]], of: str = "") -> list[RenderableType]:
    """Which page size each region wants, and what that adds to its memory; ``of`` whom."""
    larger = [one for one in found if one["advised"] and one["saved_ns"] > 0]
    rows = [
        [
            units.size(one["page_bytes"]),
            units.percent(one["saved_share"]),
            units.duration(one["saved_ns"]),
            units.size(one["resident_bytes"]),
            units.size(one["added_bytes"]),
            one["name"],
        ]
        for one in larger
    ]
    rest = sum(one["advised"] for one in found) - len(larger)
    line = f"{rest} {'other regions' if larger else 'regions'}: 4 KiB, larger pages gain nothing."
    heads = declared.SIZES_ROWS.heads(
        "page_bytes", "saved_share", "saved_ns", "resident_bytes", "added_bytes", "name"
    )
    title = f"Which region{of} wants which page size, and what that adds to its memory"
    return [
        *([listing(title, heads, rows, places=True)] if rows else []),
        *([Text(line)] if rest else []),
    ]


def functions(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Functions, most expensive first, each with the line that costs most (``file``, ``line``)."""
    known: dict[tuple[str, ...], dict[str, Any]] = {}
    for line in found["functions"]:
        key = (line["program"], line["library"], line["function"])
        if key in known:
            for name in ("tlb_misses", "faults", "ns", "share"):
                known[key][name] += line[name]
        else:
            known[key] = dict(line)
    return sorted(known.values(), key=lambda one: -one["ns"])


def source(line: Mapping[str, Any]) -> str:
    """The source file, without its folders, and the line; empty where these are not known."""
    return f"{line['file'].rpartition('/')[2]}:{line['line']}" if line["file"] else ""


def _functions(found: Mapping[str, Any]) -> list[RenderableType]:
    """Functions, most expensive first, and what has no names."""
    rows = [
        [
            one["function"],
            units.count(one["tlb_misses"]),
            units.count(one["faults"]),
            units.duration(one["ns"]),
            units.percent(one["share"]),
            source(one),
            one["library"].rpartition("/")[2],
        ]
        for one in [one for one in functions(found) if one["ns"] > 0][: SHOWN[0]]
    ]
    heads = declared.FUNCTIONS_ROWS.heads("function", "tlb_misses", "faults", "ns", "share", "line")
    parts: list[RenderableType] = []
    if found["functions"]:
        title = (
            "Where the misses and faults come from: functions, each with its most expensive line"
        )
        parts.append(listing(title, [*heads, *declared.FUNCTIONS_ROWS.heads("library")], rows))
    parts += [Text(units.clean(note)) for note in found["notes"]]
    return parts


def _terms(found: Mapping[str, Any]) -> RenderableType:
    rows = [
        [
            term["part"],
            term["term"],
            term["formula"],
            "1" if term["rate"] == 1 else units.rate(term["rate"]),
            units.duration(term["each_ns"]),
            units.duration(term["ns"]),
            units.percent(term["share"]),
        ]
        for term in found["terms"]
    ]
    title = "T_total = T_A + T_D per reference, equations 1 to 3 of page-size advice (000)"
    heads = declared.TERMS_ROWS.heads("part", "term", "formula", "rate", "each_ns", "ns", "share")
    return listing(title, heads, rows)


def _regions(found: Mapping[str, Any]) -> RenderableType:
    return _places("Where the misses and faults are, by region", found["regions"])


def _ranges(found: Mapping[str, Any]) -> RenderableType:
    ordered = sorted(found["ranges"], key=lambda place: (-place["ns"], place["addr_low"]))
    title = "The same by address range, most expensive first"
    return _places(title, ordered, [declared.ROWS.head("addr_low")])


def _sites(found: Mapping[str, Any]) -> RenderableType:
    title = "The same by the code that made the reference, most expensive first"
    return _places(title, found["sites"], [declared.SITES_ROWS.head("addr")])


def _places(
    title: str, places: Sequence[Mapping[str, Any]], where: Sequence[str] = ()
) -> RenderableType:
    """Places, below ``where`` their addresses; without it they are regions, which have names."""
    rows = []
    for place in [place for place in places if place["ns"] > 0][: SHOWN[bool(where)]]:
        counts = [
            units.count(place["tlb_misses"]),
            units.count(place["faults"]),
            units.count(place["first_touches"]),
            units.duration(place["ns"]),
            units.percent(place["share"]),
        ]
        rows.append([*([_where(place)] if where else []), *counts, place["name"]])
    heads = declared.ROWS.heads("tlb_misses", "faults", "first_touches", "ns", "share", "name")
    details = declared.ROWS.heads("first_touches")
    return listing(title, [*where, *heads], rows, details, places=True)


def _where(place: Mapping[str, Any]) -> str:
    if "addr_low" in place:
        return f"{place['addr_low']:#x}-{place['addr_high']:#x}"
    return "" if place["addr"] is None else f"{place['addr']:#x}"
