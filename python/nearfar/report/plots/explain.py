"""The time of a reference by term of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearfar import units
from nearfar.declared import explain as declared
from nearfar.paging_findings import USUAL_PAGE
from nearfar.report.html import charts
from nearfar.report.plots import Chart, bars

if TYPE_CHECKING:
    from nearfar.explain import ExplainResult

_PARTS = {"T_A": "translation", "T_D": "data"}


def draw(result: ExplainResult) -> Chart:
    """A bar for each term: translation beside data, or 4 KiB beside the page size explained."""
    rows: list[charts.Datum]
    if result.run["usual_ns"] is None:
        rows = [
            {"part": _PARTS[term["part"]], "term": term["term"], "value": term["ns"]}
            for term in result.terms
        ]
    else:
        usual, size = units.size(USUAL_PAGE), units.size(result.run["page_bytes"])
        rows = [
            {"part": part, "term": term["term"], "value": ns}
            for part, times in (
                (usual, [term["usual_ns"] for term in result.terms]),
                (size, [term["ns"] for term in result.terms]),
            )
            for term, ns in zip(result.terms, times, strict=True)
        ]
    title = f"Where {units.duration(result.run['total_ns'])} per reference go"
    return bars(
        rows,
        title,
        x="part",
        series="term",
        axis=declared.TERMS_ROWS.head("ns"),
        label=charts.TIME_LABEL,
    )
