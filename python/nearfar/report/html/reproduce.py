"""The page of ``nearfar reproduce``: published statements, and our numbers and curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from nearfar import papers, units
from nearfar.declared import paging as paging_declared
from nearfar.declared import reproduce as declared
from nearfar.report import palette
from nearfar.report import reproduce as report
from nearfar.report.html import charts, page
from nearfar.reproduce import Figure, Reproduced

_HEADS = declared.ROWS.heads("holds", "item", "published", "ours", "unit", "tolerance", "note")
_SIGNS = {
    "yes": '<span class="verdict good">● yes</span>',
    "NO": '<span class="verdict poor">■ no</span>',
    "input": '<span class="verdict">input</span>',
}
#: Colours of ``report.STATES``, in both colour schemes.
_COLOURS = (palette.OKABE_ITO["vermillion"], palette.OKABE_ITO["green"], "#8a8a8a")
#: A single paper with at most this many rows is shown unfolded.
_OPEN = 15


class ReproducePage(page.Page[Reproduced]):
    """Published results and ours."""

    title = "Published and ours - nearfar"
    kicker = "nearfar: reproduce"
    heading = "Published statements and our results"
    scripts = ("common.js", "reproduce.js")

    def __init__(self, result: Reproduced) -> None:
        """Write the headline."""
        super().__init__(result, result.run)
        sentences = (report.summary(result), report.captures(result.run))
        self.headline = " ".join(filter(None, sentences))

    def _sections(self) -> list[str]:
        rows = self.result.rows
        parts = [page.section("rows", "Published and ours", _rows(rows), wide=True)]
        caption = "Rows that hold and rows that do not, by paper."
        title = "How many rows hold"
        parts.append(self._chart_section("holds", title, holds(rows), caption, caption))
        ratios = _ratios(rows)
        if ratios["points"]:
            label = "Our numbers over the published ones"
            caption = "Our number divided by the published one. Crosses do not hold."
            parts.append(self._chart_section("ratios", "How far off", ratios, label, caption))
        for number, content in enumerate(self.result.figures):
            name = f"figure-{number}"
            self.charts[name] = figure(content)
            body = page.chart(name, content["title"], content["caption"])
            numbers = page.details("The numbers", _numbers(content))
            parts.append(page.section(f"part-{number}", content["title"], body + numbers))
        for number, table in enumerate(self.result.tables):
            body = page.prose_table(table["headers"], table["rows"], table["title"])
            folded = page.details("The table", body)
            parts.append(page.section(f"table-{number}", table["title"], folded, wide=True))
        if self.result.sensitivity:
            parts.append(_sensitivity(self.result.sensitivity))
        return parts


def _by_paper(rows: Sequence[declared.Row]) -> dict[str, list[declared.Row]]:
    """Rows by paper: rows that do not hold first, papers with most of these first."""
    found: dict[str, list[declared.Row]] = {}
    for row in sorted(rows, key=lambda row: list(report.STATES).index(row["holds"])):
        found.setdefault(row["paper"], []).append(row)
    return dict(sorted(found.items(), key=lambda item: -_missed(item[1])))


def _missed(rows: Sequence[declared.Row]) -> int:
    return sum(row["holds"] is False for row in rows)


def _rows(rows: Sequence[declared.Row]) -> str:
    """A ``details`` element for each paper, and the search field."""
    by_paper = _by_paper(rows)
    folds = []
    for paper, of_paper in by_paper.items():
        missed, name = _missed(of_paper), papers.label(paper)
        judged = sum(row["holds"] is not None for row in of_paper)
        counts = []
        if judged:
            counts.append(f"{missed} of {judged} do not hold" if missed else f"all {judged} hold")
        if judged < len(of_paper):
            counts.append(f"{len(of_paper) - judged} not judged")
        cells = [
            [
                _SIGNS[report.verdict(row)],
                page.prose(row["item"]),
                page.text(report.value(row["published"])),
                page.text(report.value(row["ours"])),
                page.prose(row["unit"]),
                page.text(row["tolerance"]),
                page.prose(row["note"]),
            ]
            for row in of_paper
        ]
        table = page.table(_HEADS, cells, f"Statements of {name}, those that do not hold first")
        opened = " open" if len(by_paper) == 1 and len(of_paper) <= _OPEN else ""
        summary = page.text(f"{name}: {', '.join(counts)}")
        folds.append(
            f'<details class="paper"{opened}><summary>{summary}</summary>{table}</details>'
        )
    return (
        '<p><label for="search">Rows that contain</label> <input id="search" type="search"></p>'
        '<p class="muted" id="count" aria-live="polite"></p>' + "".join(folds)
    )


def holds(rows: Sequence[declared.Row]) -> charts.Drawn:
    """The chart of how many rows hold, by paper."""
    import altair as alt

    by_paper = {papers.label(paper): found for paper, found in _by_paper(rows).items()}
    parts = list(report.STATES.values())
    data = alt.Chart(alt.NamedData("bars"))
    chart = data.mark_bar().encode(
        y=alt.Y("paper:N", sort=list(by_paper), axis=alt.Axis(title=None, labelLimit=220)),
        x=alt.X(
            "count:Q",
            stack="zero",
            axis=alt.Axis(title="rows", tickMinStep=1, labelOverlap="parity", labelSeparation=8),
        ),
        color=alt.Color(
            "part:N",
            scale=alt.Scale(domain=parts, range=list(_COLOURS)),
            legend=alt.Legend(title=None, orient="top", columns=2),
        ),
        order=alt.Order("order:Q"),
        tooltip=[alt.Tooltip("paper:N"), alt.Tooltip("part:N"), alt.Tooltip("count:Q")],
    )
    bars: list[charts.Datum] = [
        {
            "paper": name,
            "part": part,
            "order": order,
            "count": sum(row["holds"] is holds for row in of_paper),
        }
        for name, of_paper in by_paper.items()
        for order, (holds, part) in enumerate(report.STATES.items())
    ]
    return {"spec": charts.finish(chart, 40 + 34 * len(by_paper)), "bars": bars}


def _ratios(rows: Sequence[declared.Row]) -> charts.Drawn:
    import altair as alt

    names = [papers.label(paper) for paper in _by_paper(rows)]
    points: list[charts.Datum] = [
        {
            "paper": papers.label(row["paper"]),
            "ratio": ours / published,
            "holds": report.STATES[row["holds"]],
            "item": units.clean(row["item"]),
            "label": f"{report.value(row['ours'])}, published {report.value(row['published'])}",
        }
        for row in rows
        for ours, published in [(row["ours"], row["published"])]
        if isinstance(published, int | float) and published > 0 and ours is not None and ours > 0
    ]
    parts = list(report.STATES.values())
    data = alt.Chart(alt.NamedData("points"))
    chart = data.mark_point(size=45, filled=True, opacity=0.75).encode(
        y=alt.Y("paper:N", sort=names, axis=alt.Axis(title=None, labelLimit=220)),
        x=alt.X(
            "ratio:Q",
            scale=alt.Scale(type="log", padding=12),
            axis=alt.Axis(
                title="ours / published",
                format="~g",
                tickCount=5,
                labelOverlap="greedy",
                labelSeparation=8,
            ),
        ),
        color=alt.Color(
            "holds:N", scale=alt.Scale(domain=parts, range=list(_COLOURS)), legend=None
        ),
        shape=alt.Shape(
            "holds:N",
            scale=alt.Scale(domain=parts, range=["cross", "circle", "triangle"]),
            legend=None,
        ),
        tooltip=charts.tooltips(item="statement", label="ours"),
    )
    drawn = {point["paper"] for point in points}
    return {"spec": charts.finish(chart, 40 + 34 * len(drawn)), "points": points}


def figure(content: Figure) -> charts.Drawn:
    """The chart of a figure."""
    names = [series["name"] for series in content["series"]]
    pages = sorted({size for series in content["series"] for size, _ in series["points"]})

    def data(kind: Literal["points", "curve"]) -> list[charts.Datum]:
        return [
            {
                "page": size,
                "page_label": page.typeset(units.size(size)),
                # Zero has no logarithm.
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
        "points": data("points"),
        "curves": data("curve"),
    }


def _value_label(value: float, time: bool) -> str:
    return units.duration(value) if time else f"{value:.4g}"


def _numbers(figure: Figure) -> str:
    series = figure["series"]
    # A series has no point at a page size of which memory holds too few pages.
    columns = [{size: value for size, value in one["points"]} for one in series]
    rows = [
        [
            page.prose(units.size(size)),
            *(
                page.prose(_value_label(column[size], figure["time"])) if size in column else "-"
                for column in columns
            ),
        ]
        for size in sorted(set().union(*columns))
    ]
    return page.table(
        [paging_declared.ROWS.head("page_bytes"), *(one["name"] for one in series)],
        rows,
        figure["title"],
    )


def _sensitivity(cases: Sequence[declared.SensitivityRow]) -> str:
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
    title = "Other readings of what the papers leave open"
    heads = declared.SENSITIVITY_ROWS.heads("setting", "why", "holds", "more", "fewer")
    folded = page.details("The table", page.table(heads, cells, title))
    return page.section("sensitivity", title, folded, wide=True)
