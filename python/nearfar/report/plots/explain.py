"""The time of a reference, term by term of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nearfar import units
from nearfar.declared.explain import TERMS_ROWS
from nearfar.report.html import charts
from nearfar.report.plots import bars

if TYPE_CHECKING:
    from nearfar.explain import ExplainResult

_PARTS = {"T_A": "translation", "T_D": "data"}


def draw(result: ExplainResult) -> Any:
    """A bar a term, translation and data side by side."""
    rows = [
        {"part": _PARTS[term["part"]], "term": term["term"], "value": term["ns"]}
        for term in result.terms
    ]
    title = f"Where {units.duration(result.run['total_ns'])} per reference go"
    return bars(
        rows, title, x="part", series="term", axis=TERMS_ROWS.head("ns"), label=charts.TIME_LABEL
    )
