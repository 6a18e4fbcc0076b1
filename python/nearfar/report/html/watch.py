"""The page of ``nearfar watch``: time against memory, and working set against its window."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar import units
from nearfar.declared import watch as declared
from nearfar.memory_curve import Memory, MemoryCurve, allowed_slowdown
from nearfar.report.html import charts, memory, page
from nearfar.report.watch import lines
from nearfar.watch import WatchResult

_GLOSSARY = (
    ("working set", "The memory that a program uses within a window of time."),
    ("anonymous memory", "Memory that is in no file, so that only swap can hold it."),
    ("faults", "Pages that are read from swap or a file because they were not in memory."),
    ("MemoryHigh, MemoryMax", "Limits of systemd: above the first the kernel reclaims, above the "
     "second it kills."),
)  # fmt: skip


class WatchPage(page.Page[WatchResult]):
    """The memory that one target needs."""

    title = "Memory in use - nearfar"
    kicker = "nearfar: watch"
    glossary = _GLOSSARY

    def __init__(self, result: WatchResult) -> None:
        """Write the headings."""
        super().__init__(result, result.run)
        self.row = result.rows[0]  # Its column ``vm`` is the watched program.
        self.heading = f"How much memory does <code>{page.text(self.row['vm'])}</code> need?"
        self.answer = lines(self.row)
        _, sentence = self.answer[0]
        self.headline = sentence[:1].upper() + sentence[1:]

    def _sections(self) -> list[str]:
        parts = []
        if self.result.windows:
            most = units.size(self.row["resident_bytes"])
            parts = [
                self._chart_section(
                    "enough", "How much memory is enough", curve(self.result),
                    "Time against memory size",
                    f"Time as a multiple of that with all of {most}, computed from the faults at "
                    f"each size.",
                    wide=True,
                ),
                self._chart_section(
                    "windows", "What it used, and how often", _windows(self.result.windows),
                    "Working set against its window",
                    "Memory that was used within a window of time, on average.",
                    wide=True,
                ),
            ]  # fmt: skip
        facts = page.definitions((head, page.prose(text)) for head, text in self.answer)
        return [*parts, page.section("answer", "The answer", facts, wide=True)]


def curve(result: WatchResult) -> charts.Drawn:
    """The chart of time against memory; the answer is marked."""
    row = result.rows[0]
    times = {
        Memory(point["anonymous_bytes"] + point["file_bytes"], None): 1 + point["slowdown"]
        for point in result.windows
    }
    times[Memory(row["memory_bytes"], None)] = 1 + row["slowdown"]
    # A memory that holds all that was resident causes no slowdown.
    most = max(row["resident_bytes"], *(size.bytes for size in times))
    times.setdefault(Memory(most, None), 1.0)
    of_storage = MemoryCurve.of(str(row["storage"]), times, base=1.0)
    return memory.drawn(
        [of_storage], allowed_slowdown(result.run, declared.OPTIONS), memory.STORAGES
    )


def _windows(points: Sequence[declared.WindowsRow]) -> charts.Drawn:
    import altair as alt

    x = alt.X(
        "seconds:Q",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(title="window, seconds", format="~g", tickCount=6, grid=False),
    )
    largest = max(point["anonymous_bytes"] + point["file_bytes"] for point in points)
    base = alt.Chart(alt.NamedData("points")).encode(
        x=x,
        y=alt.Y("bytes:Q", axis=charts.size_axis("used", largest)),
        color=alt.Color("part:N", legend=alt.Legend(title=None, orient="top")),
        tooltip=charts.tooltips(seconds_label="window", part="memory", bytes_label="used"),
    )
    drawn: list[charts.Datum] = [
        {
            "seconds": point["seconds"],
            "bytes": count,
            "part": part,
            "seconds_label": page.typeset(units.duration(point["seconds"] * 1e9)),
            "bytes_label": page.typeset(units.size(count)),
        }
        for point in points
        for part, count in (
            ("all", point["anonymous_bytes"] + point["file_bytes"]),
            ("files", point["file_bytes"]),
        )
    ]
    layers = alt.layer(base.mark_line(strokeWidth=2), base.mark_point(size=40, filled=True))
    return {"spec": charts.finish(layers, 260), "points": drawn}
