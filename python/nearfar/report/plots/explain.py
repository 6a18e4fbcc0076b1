"""Chart of ``explain``: the mean time of a reference by term, such as TLB misses."""

from __future__ import annotations

from nearfar import units
from nearfar.declared import explain as declared
from nearfar.explain import ExplainResult
from nearfar.paging_findings import USUAL_PAGE
from nearfar.report.html import charts
from nearfar.report.plots import Chart, bars

_PARTS = {"T_A": "translation", "T_D": "data"}


def draw(result: ExplainResult) -> Chart:
    """A bar for each term, grouped by part (translation, data) or by page size (4 KiB, the other).

    By page size if the run has ``--view machine`` and 4 KiB pages, and another size is explained.
    """
    rows: list[charts.Datum]
    if result.run["usual_ns"] is None:
        rows = [
            {"part": _PARTS[term["part"]], "term": term["term"], "value": term["ns"]}
            for term in result.terms
        ]
    else:
        usual, size = units.size(USUAL_PAGE), units.size(result.run["page_bytes"])
        rows = [{"part": usual, "term": t["term"], "value": t["usual_ns"]} for t in result.terms]
        rows += [{"part": size, "term": t["term"], "value": t["ns"]} for t in result.terms]
    title = f"Where {units.duration(result.run['total_ns'])} per reference go"
    axis = declared.TERMS_ROWS.head("ns")
    return bars(rows, title, x="part", series="term", axis=axis, label=charts.TIME_LABEL)
