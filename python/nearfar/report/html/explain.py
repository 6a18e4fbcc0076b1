"""The page of ``nearfar explain``: the time of a row by code, region and term."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import explain as declared
from nearfar.explain import ExplainResult
from nearfar.report import explain as report
from nearfar.report.html import page

#: The number of functions and regions that tables show.
_SHOWN = 20


class ExplainPage(page.Page[ExplainResult]):
    """The parts of the time of a row."""

    kicker = "nearfar: explain"
    scripts = ("common.js", "explain.js")
    glossary = (
        (
            "TLB miss",
            "A reference whose translation no TLB holds: the processor walks page tables.",
        ),
        ("fault", "A reference to a page that is not mapped: the kernel fills it or reads it."),
        ("share", "Part of the time that all misses and faults add."),
        ("adds", "Memory that larger pages of a region take in addition to that of 4 KiB pages."),
    )

    def __init__(self, result: ExplainResult) -> None:
        """Write the headline."""
        run = result.run
        super().__init__(result, run)
        self.title = f"{run['trace']} explained - nearfar"
        size, memory = units.size(run["page_bytes"]), findings.memory_of(run).label
        self.heading = (
            f"Where the time of <code>{page.name(run['trace'])}</code> comes from: "
            f"{page.text(page.typeset(f'{size} pages, {memory} memory'))}"
        )
        self.functions = report.functions(result.functions)
        self.headline = " ".join(_findings(result, self.functions))

    def _sections(self) -> list[str]:
        result = self.result
        parts = [page.section("code", "Which code", self._code(), wide=True)]
        if result.sizes:
            parts.append(page.section("sizes", "Which page size", sizes(result.sizes), wide=True))
        regions = _regions(result.regions)
        parts.append(page.section("regions", "Which memory", regions, wide=True))
        parts.append(page.section("terms", "Which part of the time", _terms(result)))
        return parts

    def _code(self) -> str:
        notes = "".join(
            f'<p class="note">{page.text(page.typeset(_sentence(note)))}</p>'
            for note in self.result.notes
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


def _findings(result: ExplainResult, functions: Sequence[declared.FunctionsRow]) -> list[str]:
    run = result.run
    time = f"{units.duration(run['total_ns'])} per reference"
    if run["usual_ns"]:
        time += f", {report.change(run['total_ns'], run['usual_ns'])} than with 4 KiB"
    parts = [f"{time}."]
    if functions and functions[0]["ns"] > 0:
        top = functions[0]
        name = f"{top['function'] or top['library']} of {top['library'].rpartition('/')[2]}"
        parts.append(f"{units.percent(top['share'])} of what misses and faults add is in {name}.")
    larger, _ = report.larger_pages(result.sizes)
    if larger:
        best = larger[0]
        parts.append(
            f"{units.size(best['page_bytes'])} pages of {best['name']} alone save "
            f"{units.percent(best['saved_share'])} and add {units.size(best['added_bytes'])}."
        )
    return parts


def sizes(rows: Sequence[declared.SizesRow]) -> str:
    """The regions that gain by larger pages; in a fold, each region at each size."""

    def cells(row: declared.SizesRow) -> list[str]:
        saved = row["saved_ns"]
        return [
            page.path(row["name"]),
            page.text(page.typeset(units.size(row["page_bytes"]))),
            page.text(page.typeset(units.percent(row["saved_share"]))),
            page.text(page.typeset(units.size(row["added_bytes"]))),
            page.text(page.typeset(units.size(row["resident_bytes"]))),
            page.text(page.typeset(("-" if saved < 0 else "") + units.duration(abs(saved)))),
        ]

    heads = declared.SIZES_ROWS.heads(
        "name", "page_bytes", "saved_share", "added_bytes", "resident_bytes", "saved_ns"
    )
    larger, rest = report.larger_pages(rows)
    title = "Regions that gain by larger pages, and the memory that these add"
    body = page.table(heads, [cells(row) for row in larger], title) if larger else ""
    if rest:
        line = f"{rest} {'other regions gain' if larger else 'regions gain'} nothing: 4 KiB."
        body += f"<p>{page.text(page.typeset(line))}</p>"
    every = page.table(heads, [cells(row) for row in rows], "Each region at each page size")
    return body + page.details("Every region at every size", every)


def _regions(regions: Sequence[declared.Row]) -> str:
    rows = [
        [
            page.path(region["name"]),
            page.text(page.typeset(units.percent(region["share"]))),
            page.text(page.typeset(units.duration(region["ns"]))),
            page.text(units.count(region["tlb_misses"])),
            page.text(units.count(region["faults"])),
            page.text(units.count(region["references"])),
        ]
        for region in regions
        if region["ns"] > 0
    ]
    heads = declared.ROWS.heads("name", "share", "ns", "tlb_misses", "faults", "references")
    title = "Where misses and faults are"
    body = page.table(heads, rows[:_SHOWN], title)
    if len(rows) > _SHOWN:
        body += page.details(
            f"{len(rows) - _SHOWN} more regions", page.table(heads, rows[_SHOWN:], title)
        )
    return body


def _terms(result: ExplainResult) -> str:
    heads, rows = report.term_cells(result, result.terms)
    cells = [[page.text(page.typeset(cell)) for cell in row] for row in rows]
    return page.table(heads, cells, "Time per reference")
