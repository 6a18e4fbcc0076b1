"""The page of ``nearfar reproduce``: what the papers state and our numbers and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nearfar.report import reproduce as report
from nearfar.report import units
from nearfar.report.html import charts, page

if TYPE_CHECKING:
    from nearfar.reproduce import Reproduced

_HEADERS = ("holds", "paper", "what is published", "published", "ours", "unit", "tolerance", "seen")
_SIGNS = {
    True: '<span class="verdict good">● yes</span>',
    False: '<span class="verdict poor">■ no</span>',
}


def reproduce_page(found: Reproduced) -> str:
    """Published results beside ours as one HTML file.

    Args:
        found: of any study; its figures are drawn, its tables shown.

    Returns:
        The page's text, to be written as UTF-8.
    """
    result = found.to_dict()
    drawn: dict[str, Any] = {}
    parts = [page.section("rows", "Published and ours", _rows(result["rows"]), wide=True)]
    for number, one in enumerate(found.figures):
        name = f"figure-{number}"
        drawn[name] = figure(one)
        body = page.chart(name, one["title"], one["caption"])
        numbers = page.details("The numbers", _numbers(one))
        parts.append(page.section(f"part-{number}", one["title"], body + numbers))
    for number, table in enumerate(found.tables):
        cells = [[page.text(page.nice(cell)) for cell in row] for row in table["rows"]]
        body = page.table(table["headers"], cells, table["title"])
        parts.append(page.section(f"table-{number}", table["title"], body, wide=True))
    if found.sensitivity:
        parts.append(_sensitivity(found.sensitivity))
    made = page.run_facts(found.run) + page.downloads(csv=False)
    parts.append(page.section("run", "How this was made", made))
    told = " ".join(part for part in (report.summary(result), report.captures(found.run)) if part)
    return page.build(
        title="Published and ours - nearfar",
        kicker="nearfar: reproduce",
        heading="What the papers state, and what we find",
        lead=f'<p class="finding" id="finding">{page.text(page.nice(told))}</p>',
        body="\n".join(parts),
        data={"result": result, "model": {"charts": drawn}},
        scripts=["common.js", "reproduce.js"],
    )


def _rows(rows: Sequence[Mapping[str, Any]]) -> str:
    cells = [
        [
            _SIGNS[bool(row["holds"])],
            page.text(row["paper"]),
            page.text(page.nice(row["item"])),
            page.text(report.value(row["published"])),
            page.text(report.value(row["ours"])),
            page.text(page.nice(row["unit"])),
            page.text(row["tolerance"]),
            page.text(page.nice(row["note"])),
        ]
        for row in rows
    ]
    return page.table(_HEADERS, cells, "Each published number or statement, and ours")


def figure(told: Mapping[str, Any]) -> dict[str, Any]:
    """The chart of a figure: its specification, points and curves."""
    names = [series["name"] for series in told["series"]]
    pages = sorted({size for series in told["series"] for size, _ in series["points"]})

    def listed(kind: str) -> list[dict[str, Any]]:
        return [
            {
                "page": size,
                "page_label": page.nice(units.size(size)),
                # A logarithm has no zero.
                "value": page.number(value) if value > 0 else None,
                "value_label": page.nice(_told(value, told["time"])),
                "series": series["name"],
            }
            for series in told["series"]
            for size, value in series[kind]
        ]

    return {
        "spec": charts.published(pages, names, told["axis"], told["time"]),
        "series": len(names),
        "points": listed("points"),
        "curves": listed("curve"),
    }


def _told(value: float, time: bool) -> str:
    return units.duration(value) if time else f"{value:.4g}"


def _numbers(figure: Mapping[str, Any]) -> str:
    series = figure["series"]
    rows = [
        [
            page.text(page.nice(units.size(size))),
            *(page.text(page.nice(_told(one["points"][i][1], figure["time"]))) for one in series),
        ]
        for i, (size, _) in enumerate(series[0]["points"])
    ]
    return page.table(["page", *(one["name"] for one in series)], rows, figure["title"])


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
    headers = ["setting", "stands for", "rows that hold", "these too", "these no more"]
    return page.section("sensitivity", title, page.table(headers, cells, title), wide=True)
