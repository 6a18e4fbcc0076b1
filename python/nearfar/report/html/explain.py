"""The page of ``nearfar explain``: time of a row of a paging run, by code, region and term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import explain as declared
from nearfar.explain import ExplainResult
from nearfar.report import explain as report
from nearfar.report.html import page
from nearfar.schema import Rows

#: Maximum number of functions or regions in a table.
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
            f"{page.prose(f'{size} pages, {memory} memory')}"
        )
        self.functions = report.functions(result.functions)
        self.headline = " ".join(_findings(result, self.functions))

    def _sections(self) -> list[str]:
        result = self.result
        parts = [page.section("code", "Which code", self._code(), wide=True)]
        if result.sizes:
            parts.append(page.section("sizes", "Which page size", sizes(result.sizes), wide=True))
        regions = _regions(result.regions)
        terms = page.prose_table(*report.term_cells(result, result.terms), "Time per reference")
        parts.append(page.section("regions", "Which memory", regions, wide=True))
        parts.append(page.section("terms", "Which part of the time", terms))
        return parts

    def _code(self) -> str:
        notes = "".join(
            f'<p class="note">{page.prose(f"{note[:1].upper()}{note[1:]}.")}</p>'
            for note in self.result.notes
        )
        if not self.functions:
            return notes or "<p>No misses and no faults.</p>"
        names = ("function", "library", "line", "tlb_misses", "faults", "ns", "share")
        shown = map(report.named, self.functions[:_SHOWN])
        table = page.table(
            declared.FUNCTIONS_ROWS.heads(*names),
            page.cells(declared.FUNCTIONS_ROWS, names, shown),
            "Functions, each with its most expensive line",
        )
        measures = "".join(
            f'<option value="{name}">{page.text(declared.FUNCTIONS_ROWS.head(name))}</option>'
            for name in ("ns", "tlb_misses", "faults")
        )
        picture = (
            '<div class="controls"><label for="measure">Width shows</label>'
            f'<select id="measure">{measures}</select></div>'
            '<figure><div id="icicle" class="icicle"></div>'
            '<p class="reading" id="icicle-reading" aria-live="polite">'
            "From top to bottom: program, library, function, line. Choose a part to see it alone."
            "</p></figure>"
        )
        more = page.details("Notes on names", notes) if notes else ""
        return picture + page.details("The functions as a table", table) + more


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
    """Regions that gain by larger pages; below, collapsed, each region at each page size."""
    names = ("page_bytes", "saved_share", "added_bytes", "resident_bytes", "saved_ns")

    def table(rows: Sequence[declared.SizesRow], title: str) -> str:
        return _named_table(declared.SIZES_ROWS, names, rows, title)

    larger, rest = report.larger_pages(rows)
    title = "Regions that gain by larger pages, and the memory that larger pages add"
    body = table(larger, title) if larger else ""
    if rest:
        line = f"{rest} {'other regions gain' if larger else 'regions gain'} nothing: 4 KiB."
        body += f"<p>{page.prose(line)}</p>"
    every = table(rows, "Each region at each page size")
    return body + page.details("Every region at every size", every)


def _named_table(
    declaration: Rows, names: Sequence[str], rows: Sequence[Mapping[str, object]], title: str
) -> str:
    """A table of regions: their names, which may be paths, and the columns ``names``."""
    cells = page.cells(declaration, names, rows)
    named = [[page.path(row["name"]), *line] for row, line in zip(rows, cells, strict=True)]
    return page.table(declaration.heads("name", *names), named, title)


def _regions(regions: Sequence[declared.Row]) -> str:
    names = ("share", "ns", "tlb_misses", "faults", "references")
    rows = [region for region in regions if region["ns"] > 0]
    title = "Where misses and faults are"
    body = _named_table(declared.ROWS, names, rows[:_SHOWN], title)
    if len(rows) > _SHOWN:
        more = _named_table(declared.ROWS, names, rows[_SHOWN:], title)
        body += page.details(f"{len(rows) - _SHOWN} more regions", more)
    return body
