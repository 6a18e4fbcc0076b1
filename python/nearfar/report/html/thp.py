"""The page of ``nearfar thp``: memory over time, and times per reference, by policy."""

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
        "A huge page becomes small pages, because part of it is released or copied on write, or "
        "memory is at its limit.",
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
    """Huge page policies of one program."""

    kicker = "nearfar: thp"
    title = "Huge pages - nearfar"
    glossary = _GLOSSARY

    def __init__(self, result: ThpResult) -> None:
        """Write the headings."""
        super().__init__(result, result.run)
        self.heading = f"Huge pages for <code>{page.name(result.run['trace'])}</code>?"
        self.headline, *self.more = [*texts.answer(result), texts.basis(result)]

    def _sections(self) -> list[str]:
        result, label = self.result, "Private memory over time, by policy"
        caption = "Private memory that is mapped, in the program's own time under each policy."
        table = page.prose_table(*texts.cells(result.rows), "Policies")
        sections = [
            self._chart_section(
                "memory", "Memory over time", over_time(result), label, caption, wide=True
            ),
            page.section("numbers", "The numbers", table, wide=True),
        ]
        if result.areas:
            table = page.prose_table(*texts.area_cells(result), texts.AREAS)
            advice = page.text(texts.advised(result))
            sections.append(page.section("areas", "Areas", f"{table}<p>{advice}</p>", wide=True))
        return sections


def over_time(result: ThpResult) -> charts.Drawn:
    """The chart of private memory over time, a line for each policy."""
    import altair as alt

    largest = max((point["mapped_bytes"] for point in result.points), default=1)
    policies = [row["policy"] for row in result.rows]
    data = alt.Chart(alt.NamedData("points"))
    chart = data.mark_line(interpolate="step-after", strokeWidth=2).encode(
        x=alt.X("seconds:Q", axis=alt.Axis(title="time, seconds", grid=False)),
        y=alt.Y("bytes:Q", axis=charts.size_axis("private memory", largest)),
        color=alt.Color("policy:N", sort=policies, legend=alt.Legend(title=None, orient="top")),
        tooltip=charts.tooltips(policy="", time="", mapped="private memory", huge="in huge pages"),
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
    return {"spec": charts.finish(chart, 260), "points": points}
