"""The page of ``nearfar thp``: memory over time, and the time of a reference, by policy."""

from __future__ import annotations

from typing import Final

from nearfar import units
from nearfar.report import thp as texts
from nearfar.report.html import charts, page
from nearfar.thp import ThpResult

_GLOSSARY: Final = (
    ("huge page", "A page of 2 MiB."),
    ("merge", "khugepaged, or a call of the program, makes a huge page out of small ones."),
    (
        "split",
        "A huge page becomes small pages, because a part of it is given back or copied, or memory "
        "is at its limit.",
    ),
    (
        "fallback",
        "A fault takes small pages, because no block of 2 MiB is free, or memory is at its limit.",
    ),
    ("stall", "A fault of more than 100 microseconds."),
    ("start", "The time in which memory is filled."),
    ("swap-in", "A page of 4 KiB is read back from swap."),
)


class ThpPage(page.Page[ThpResult]):
    """Settings for huge pages of one program."""

    kicker = "nearfar: thp"
    title = "Huge pages - nearfar"
    glossary = _GLOSSARY

    def __init__(self, result: ThpResult) -> None:
        """Write the headings."""
        super().__init__(result, result.run)
        self.heading = f"Huge pages for <code>{page.name(result.run['trace'])}</code>?"
        self.headline, *self.more = [*texts.answer(result), texts.rests(result)]

    def _sections(self) -> list[str]:
        self.charts["memory"] = over_time(self.result)
        names, rows = texts.cells(self.result.rows)
        cells = [[page.text(page.typeset(cell)) for cell in row] for row in rows]
        caption = "Private memory that is mapped, in the program's own time under each policy."
        drawn = page.chart("memory", "Private memory over time, by policy", caption)
        table = page.table(names, cells, "Policies")
        sections = [
            page.section("memory", "Memory over time", drawn, wide=True),
            page.section("numbers", "The numbers", table, wide=True),
        ]
        if self.result.areas:
            names, rows = texts.area_cells(self.result)
            cells = [[page.text(page.typeset(cell)) for cell in row] for row in rows]
            table = page.table(names, cells, texts.AREAS)
            said = page.text(texts.advised(self.result))
            sections.append(page.section("areas", "Areas", f"{table}<p>{said}</p>", wide=True))
        return sections


def over_time(result: ThpResult) -> charts.Drawn:
    """The chart of private memory over time, a line for each policy."""
    import altair as alt

    largest = max((point["mapped_bytes"] for point in result.points), default=1)
    axis = alt.Axis(
        title="private memory", labelExpr=charts.SIZE_LABEL, values=charts.size_ticks(largest)
    )
    policies = [row["policy"] for row in result.rows]
    made = (
        alt.Chart(alt.NamedData("points"))
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=alt.X("seconds:Q", axis=alt.Axis(title="time, seconds", grid=False)),
            y=alt.Y("bytes:Q", axis=axis),
            color=alt.Color("policy:N", sort=policies, legend=alt.Legend(title=None, orient="top")),
            tooltip=[
                alt.Tooltip("policy:N"),
                alt.Tooltip("time:N"),
                alt.Tooltip("mapped:N", title="private memory"),
                alt.Tooltip("huge:N", title="in huge pages"),
            ],
        )
    )
    points: list[charts.Datum] = [
        {
            "policy": point["policy"],
            "seconds": point["ns"] / 1e9,
            "bytes": point["mapped_bytes"],
            "time": page.typeset(units.duration(point["ns"])),
            "mapped": page.typeset(units.size(point["mapped_bytes"])),
            "huge": page.typeset(units.size(point["huge_bytes"])),
        }
        for point in result.points
    ]
    return {"spec": charts.finish(made, 260), "points": points}
