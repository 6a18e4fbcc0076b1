"""The time of a reference, term by term of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nearfar import units
from nearfar.declared import explain as declared
from nearfar.paging_findings import USUAL_PAGE
from nearfar.report.html import charts
from nearfar.report.plots import bars

if TYPE_CHECKING:
    from nearfar.explain import ExplainResult

_PARTS = {"T_A": "translation", "T_D": "data"}


def draw(result: ExplainResult) -> Any:
    """A bar a term: translation and data side by side, or 4 KiB and the page size explained."""
    rows: list[dict[str, Any]]
    if result.run["usual_ns"] is None:
        rows = [
            {"part": _PARTS[term["part"]], "term": term["term"], "value": term["ns"]}
            for term in result.terms
        ]
    else:
        sizes = {"usual_ns": USUAL_PAGE, "ns": result.run["page_bytes"]}
        terms: list[Mapping[str, Any]] = [*result.terms]
        rows = [
            {"part": units.size(size), "term": term["term"], "value": term[key]}
            for key, size in sizes.items()
            for term in terms
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
