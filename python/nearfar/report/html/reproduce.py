"""The page of ``nearfar reproduce``: what the papers state and our numbers and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nearfar import papers, units
from nearfar.declared.paging import ROWS as PAGING
from nearfar.declared.reproduce import ROWS, SENSITIVITY_ROWS
from nearfar.report import reproduce as report
from nearfar.report.html import charts, page

_HEADS = ROWS.heads("holds", "paper", "item", "published", "ours", "unit", "tolerance", "note")
_SIGNS = {
    "yes": '<span class="verdict good">● yes</span>',
    "NO": '<span class="verdict poor">■ no</span>',
    "input": '<span class="verdict">input</span>',
    "short": '<span class="verdict">short</span>',
}


class ReproducePage(page.Page):
    """Published results beside ours.

    Args:
        result: what ``nearfar reproduce --format json`` prints.
        figures: to be drawn; tables: to be shown (:class:`nearfar.reproduce.Reproduced`).
    """

    title = "Published and ours - nearfar"
    kicker = "nearfar: reproduce"
    heading = "What the papers state, and what we find"
    scripts = ("common.js", "reproduce.js")

    def __init__(
        self,
        result: Mapping[str, Any],
        figures: Sequence[Mapping[str, Any]] = (),
        tables: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Keep what is drawn and shown besides the rows."""
        super().__init__(result)
        self.figures, self.tables = figures, tables
        found = (report.summary(result), report.captures(result["run"]))
        self.headline = " ".join(part for part in found if part)

    def _sections(self) -> list[str]:
        rows = _rows(self.result["rows"])
        parts = [page.section("rows", "Published and ours", rows, wide=True)]
        for number, one in enumerate(self.figures):
            name = f"figure-{number}"
            self.charts[name] = figure(one)
            body = page.chart(name, one["title"], one["caption"])
            numbers = page.details("The numbers", _numbers(one))
            parts.append(page.section(f"part-{number}", one["title"], body + numbers))
        for number, table in enumerate(self.tables):
            cells = [[page.text(page.typeset(cell)) for cell in row] for row in table["rows"]]
            body = page.table(table["headers"], cells, table["title"])
            parts.append(page.section(f"table-{number}", table["title"], body, wide=True))
        if self.result["sensitivity"]:
            parts.append(_sensitivity(self.result["sensitivity"]))
        return parts


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        [
            _SIGNS[report.verdict(row)],
            page.text(papers.label(row["paper"])),
            page.text(page.typeset(row["item"])),
            page.text(report.value(row["published"])),
            page.text(report.value(row["ours"])),
            page.text(page.typeset(row["unit"])),
            page.text(row["tolerance"]),
            page.text(page.typeset(row["note"])),
        ]
        for row in rows
    ]
    return page.table(_HEADS, cells, "Each published number or statement, and ours")


def figure(content: Mapping[str, Any]) -> charts.Drawn:
    """The chart of a figure: its specification, points and curves."""
    names = [series["name"] for series in content["series"]]
    pages = sorted({size for series in content["series"] for size, _ in series["points"]})

    def listed(kind: str) -> list[charts.Datum]:
        return [
            {
                "page": size,
                "page_label": page.typeset(units.size(size)),
                # A logarithm has no zero.
                "value": page.number(value) if value > 0 else None,
                "value_label": page.typeset(_value_label(value, content["time"])),
                "series": series["name"],
            }
            for series in content["series"]
            for size, value in series[kind]
        ]

    return {
        "spec": charts.published(pages, names, content["axis"], content["time"]),
        "series": len(names),
        "points": listed("points"),
        "curves": listed("curve"),
    }


def _value_label(value: float, time: bool) -> str:
    return units.duration(value) if time else f"{value:.4g}"


def _numbers(figure: Mapping[str, Any]) -> str:
    series = figure["series"]
    rows = [
        [
            page.text(page.typeset(units.size(size))),
            *(
                page.text(page.typeset(_value_label(one["points"][i][1], figure["time"])))
                for one in series
            ),
        ]
        for i, (size, _) in enumerate(series[0]["points"])
    ]
    return page.table(
        [PAGING.head("page_bytes"), *(one["name"] for one in series)], rows, figure["title"]
    )


def _sensitivity(cases: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        [
            page.text(case["setting"]),
            page.text(case["why"]),
            page.text(f"{case['holds']} of {case['rows']}"),
            page.text("; ".join(case["more"]) or "-"),
            page.text("; ".join(case["fewer"]) or "-"),
        ]
        for case in cases
    ]
    title = "What the papers leave open, chosen otherwise"
    heads = SENSITIVITY_ROWS.heads("setting", "why", "holds", "more", "fewer")
    return page.section("sensitivity", title, page.table(heads, cells, title), wide=True)
