"""The page of ``nearfar explain``: which code, regions and terms the time of a row comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import explain as declared
from nearfar.report import explain as report
from nearfar.report.html import page

Row = Mapping[str, Any]

#: Functions and regions that tables show.
_SHOWN = 20


class ExplainPage(page.Page):
    """A row of a run, taken apart.

    Args:
        result: what ``nearfar explain --format json`` prints.
    """

    kicker = "nearfar: explain"
    scripts = ("common.js", "explain.js")
    glossary = (
        (
            "TLB miss",
            "A reference whose translation no TLB holds: the processor walks page tables.",
        ),
        ("fault", "A reference to a page that is not mapped: the kernel fills it or reads it."),
        ("share", "Part of all the time that misses and faults add."),
        ("adds", "Memory that larger pages of a region take beyond what 4 KiB pages of it do."),
    )

    def __init__(self, result: Mapping[str, Any]) -> None:
        """Say where most of it comes from."""
        super().__init__(result)
        run = result["run"]
        self.title = f"{run['trace']} explained - nearfar"
        size, memory = units.size(run["page_bytes"]), findings.memory_of(run).label
        self.heading = (
            f"Where the time of <code>{page.name(run['trace'])}</code> comes from: "
            f"{page.text(page.typeset(f'{size} pages, {memory} memory'))}"
        )
        self.functions = report.functions(result)
        self.headline = " ".join(_findings(result, self.functions))

    def _sections(self) -> list[str]:
        found = self.result
        parts = [page.section("code", "Which code", self._code(), wide=True)]
        if found["sizes"]:
            parts.append(page.section("sizes", "Which page size", sizes(found["sizes"]), wide=True))
        regions = _regions(found["regions"])
        parts.append(page.section("regions", "Which memory", regions, wide=True))
        parts.append(page.section("terms", "Which part of the time", _terms(found)))
        return parts

    def _code(self) -> str:
        notes = "".join(
            f'<p class="note">{page.text(page.typeset(_sentence(note)))}</p>'
            for note in self.result["notes"]
        )
        if not self.functions:
            return notes or "<p>No misses and no faults.</p>"
        rows = [
            [
                page.text(one["function"]),
                page.text(one["library"].rpartition("/")[2]),
                page.text(report.source(one)),
                page.text(units.count(one["tlb_misses"])),
                page.text(units.count(one["faults"])),
                page.text(page.typeset(units.duration(one["ns"]))),
                page.text(page.typeset(units.percent(one["share"]))),
            ]
            for one in self.functions[:_SHOWN]
        ]
        heads = declared.FUNCTIONS_ROWS.heads(
            "function", "library", "line", "tlb_misses", "faults", "ns", "share"
        )
        table = page.table(heads, rows, "Functions, each with its most expensive line")
        measures = "".join(
            f'<option value="{name}">{page.text(declared.FUNCTIONS_ROWS.head(name))}</option>'
            for name in ("ns", "tlb_misses", "faults")
        )
        picture = (
            '<div class="controls"><label for="measure">Width</label>'
            f'<select id="measure">{measures}</select></div>'
            '<figure><div id="icicle" class="icicle"></div>'
            '<p class="reading" id="icicle-reading" aria-live="polite">'
            "From top to bottom: program, library, function, line. Choose a part to see it alone."
            "</p></figure>"
        )
        more = page.details("Notes on names", notes) if notes else ""
        return picture + page.details("The functions as a table", table) + more


def _sentence(note: str) -> str:
    return note[:1].upper() + note[1:] + "."


def _findings(result: Mapping[str, Any], functions: Sequence[Row]) -> list[str]:
    run = result["run"]
    time = f"{units.duration(run['total_ns'])} per reference"
    usual = run["usual_ns"]
    if usual:
        change = 1 - run["total_ns"] / usual
        time += (
            f", {units.percent(abs(change))} {'less' if change >= 0 else 'more'} than with 4 KiB"
        )
    parts = [f"{time}."]
    if functions and functions[0]["ns"] > 0:
        top = functions[0]
        name = f"{top['function'] or top['library']} of {top['library'].rpartition('/')[2]}"
        parts.append(f"{units.percent(top['share'])} of what misses and faults add is in {name}.")
    larger = [one for one in result["sizes"] if one["advised"] and one["saved_ns"] > 0]
    if larger:
        best = larger[0]
        parts.append(
            f"{units.size(best['page_bytes'])} pages of {best['name']} alone save "
            f"{units.percent(best['saved_share'])} and add {units.size(best['added_bytes'])}."
        )
    return parts


def sizes(found: Sequence[Row]) -> str:
    """Regions that gain by larger pages; all of them, at each size, in a fold."""

    def cells(one: Row) -> list[str]:
        saved = one["saved_ns"]
        return [
            page.path(one["name"]),
            page.text(page.typeset(units.size(one["page_bytes"]))),
            page.text(page.typeset(units.percent(one["saved_share"]))),
            page.text(page.typeset(units.size(one["added_bytes"]))),
            page.text(page.typeset(units.size(one["resident_bytes"]))),
            page.text(page.typeset(("-" if saved < 0 else "") + units.duration(abs(saved)))),
        ]

    heads = declared.SIZES_ROWS.heads(
        "name", "page_bytes", "saved_share", "added_bytes", "resident_bytes", "saved_ns"
    )
    larger = [one for one in found if one["advised"] and one["saved_ns"] > 0]
    rest = sum(one["advised"] for one in found) - len(larger)
    title = "Regions that gain by larger pages, and what these add to their memory"
    body = page.table(heads, [cells(one) for one in larger], title) if larger else ""
    if rest:
        line = f"{rest} {'other regions gain' if larger else 'regions gain'} nothing: 4 KiB."
        body += f"<p>{page.text(page.typeset(line))}</p>"
    every = page.table(heads, [cells(one) for one in found], "Each region at each page size")
    return body + page.details("Every region at every size", every)


def _regions(regions: Sequence[Row]) -> str:
    keys = ("tlb_misses", "faults", "references")
    rows = [
        [
            page.path(region["name"]),
            page.text(page.typeset(units.percent(region["share"]))),
            page.text(page.typeset(units.duration(region["ns"]))),
            *(page.text(units.count(region[key])) for key in keys),
        ]
        for region in regions
        if region["ns"] > 0
    ]
    heads = declared.ROWS.heads("name", "share", "ns", *keys)
    title = "Where misses and faults are"
    body = page.table(heads, rows[:_SHOWN], title)
    if len(rows) > _SHOWN:
        body += page.details(
            f"{len(rows) - _SHOWN} more regions", page.table(heads, rows[_SHOWN:], title)
        )
    return body


def _terms(found: Mapping[str, Any]) -> str:
    run = found["run"]
    keys = ["term", "ns", "share"]
    if run["usual_ns"] is not None:
        keys = ["term", "usual_ns", "ns", "saved_ns", "gain"]
    heads = declared.TERMS_ROWS.heads(*keys)
    heads[keys.index("ns")] = units.size(run["page_bytes"])

    def cell(key: str, value: Any) -> str:
        if key == "term":
            return page.text(value)
        shown = units.percent(value) if key in ("share", "gain") else units.duration(value)
        return page.text(page.typeset(shown))

    rows = [[cell(key, term[key]) for key in keys] for term in found["terms"]]
    return page.table(heads, rows, "Time per reference")
