"""Tables of ``explain``, made from its result alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared.explain import ROWS, SITES_ROWS, TERMS_ROWS
from nearfar.report.tables import listing

#: Regions, and ranges and pieces of code, that the tables show.
SHOWN = (12, 6)


def explain(found: Mapping[str, Any]) -> RenderableType:
    """The terms of the model, then where its misses and faults come from."""
    run = found["run"]
    memory = findings.memory_of(run).label
    head = (
        f"{run['trace']}, {units.size(run['page_bytes'])} pages, {memory} memory, "
        f"{run['storage']}: {units.duration(run['total_ns'])} per reference"
    )
    if run["times"] == "machine":
        return Group(*_spent(found, head))
    parts: list[RenderableType] = [Text(units.clean(head), style="bold"), Text("")]
    parts += [_terms(found), Text(""), _regions(found), Text(""), _ranges(found)]
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
    heads = TERMS_ROWS.heads(*keys)
    whole = {"term": "total", "ns": run["total_ns"], "share": 1.0}
    if usual is not None:
        keys = ["term", "usual_ns", "ns", "saved_ns", "gain"]
        heads = TERMS_ROWS.heads(*keys)
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
    left = (
        "No regions, addresses or code: explain counts them with the TLB of --view paper, which is "
        "not the machine's."
    )
    table = listing("Time per reference as the machine spends it", heads, rows)
    return [Text(units.clean(head), style="bold"), Text(""), table, Text(""), Text(left)]


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
    heads = TERMS_ROWS.heads("part", "term", "formula", "rate", "each_ns", "ns", "share")
    return listing(title, heads, rows)


def _regions(found: Mapping[str, Any]) -> RenderableType:
    return _places("Where the misses and faults are, by region", found["regions"])


def _ranges(found: Mapping[str, Any]) -> RenderableType:
    ordered = sorted(found["ranges"], key=lambda place: (-place["ns"], place["addr_low"]))
    title = "The same by address range, most expensive first"
    return _places(title, ordered, [ROWS.head("addr_low")])


def _sites(found: Mapping[str, Any]) -> RenderableType:
    title = "The same by the code that made the reference, most expensive first"
    return _places(title, found["sites"], [SITES_ROWS.head("addr")])


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
    heads = ROWS.heads("tlb_misses", "faults", "first_touches", "ns", "share", "name")
    details = ROWS.heads("first_touches")
    return listing(title, [*where, *heads], rows, details)


def _where(place: Mapping[str, Any]) -> str:
    if "addr_low" in place:
        return f"{place['addr_low']:#x}-{place['addr_high']:#x}"
    return "" if place["addr"] is None else f"{place['addr']:#x}"
