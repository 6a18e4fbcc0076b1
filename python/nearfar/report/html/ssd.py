"""The page of the ssd study: parts of the cores' time, and the device's service times.

The column ``epf`` is the policy of embedded page faults (EPF).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypedDict, get_args

from nearfar import units
from nearfar.declared import ssd as declared
from nearfar.report import palette
from nearfar.report import ssd as texts
from nearfar.report.cells import cells
from nearfar.report.html import charts, page
from nearfar.ssd import Detail, SsdResult

#: Colours of the parts of a core's time.
_PARTS: Final = dict(zip(texts.CPU, ("blue", "vermillion", "purple", "grey"), strict=True))
#: Service times, each with a histogram.
_Kind = Literal["predicted", "actual"]
_KINDS: Final[tuple[_Kind, ...]] = get_args(_Kind)
_COLOURS = palette.OKABE_ITO | {"grey": palette.GREY}
_GLOSSARY = (
    (
        "embedded page fault",
        "A reference to a page that is only in the device's flash; the device loads the page into "
        "its DRAM.",
    ),
    ("busy", "The core executes, or waits for DRAM."),
    ("stall", "The core waits for the device's flash and does nothing else."),
    ("switch", "The core is in the kernel for an exception or a context switch."),
    ("idle", "No thread is ready."),
    (
        "predicted",
        "The device's estimate of the service time, as if it were idle.",
    ),
    ("passed on", "The fault went to the kernel, which may put the thread to sleep."),
)


class Cell(TypedDict):
    """A row's histogram and the threshold of its policy, for the script."""

    name: str
    threshold: charts.Datum | None
    bars: list[charts.Datum]


class SsdPage(page.Page[SsdResult]):
    """The ssd study."""

    title = "DRAM-interface SSD - nearfar"
    kicker = "nearfar: ssd"
    limit = 200
    glossary = _GLOSSARY
    scripts = ("common.js", "ssd.js")

    def __init__(self, result: SsdResult) -> None:
        """Write the headings and make the script's data."""
        super().__init__(result, result.run, len(result.rows))
        trace = page.name(result.run["trace"])
        self.heading = f"Wait for flash, or run something else? <code>{trace}</code>"
        #: Whether a fault reached the flash, so that policies can differ.
        self.faults = any(row["embedded_fault_rate"] for row in result.rows)
        self.headline, *self.more = _answers(result, self.faults)
        pairs = zip(result.rows, result.details, strict=True)
        self.cells = [_cell(row, detail) for row, detail in pairs]

    def _sections(self) -> list[str]:
        rows = self.result.rows
        if not self.faults:
            return [page.section("numbers", "The numbers", _table(rows), wide=True)]
        options = "".join(
            f'<option value="{i}">{page.text(cell["name"])}</option>'
            for i, cell in enumerate(self.cells)
        )
        chooser = (
            '<p class="controls"><label for="which">Policy and DRAM</label>'
            f'<select id="which">{options}</select></p>'
        )
        chart = page.chart(
            "service",
            "Embedded page faults by predicted and by actual service time",
            "Embedded page faults by predicted and by actual time, 8 bins per doubling. "
            "The line is the threshold of the policy.",
        )
        parts, title = [], "How much DRAM in the device"
        if len(texts.by_size(rows)) > 1:
            label = "Time by DRAM of the device, a line for each policy"
            caption = f"{label}. Less is better."
            parts.append(
                self._chart_section("times", title, _times(rows), label, caption, wide=True)
            )
        return [
            *parts,
            page.section("bars", "Where the time went", _bars(rows), wide=True),
            page.section("service", "How long the device took", chooser + chart, wide=True),
            page.section("numbers", "The numbers", _table(rows), wide=True),
        ]

    def _data(self) -> dict[str, object]:
        charts_of = {"service": {"spec": _histogram()}, **self.charts} if self.faults else {}
        # Timelines are too long for a page.
        details = [{k: v for k, v in d.items() if k != "timeline"} for d in self.result.details]
        result = {**self.result.to_dict(), "details": details}
        return {"result": result, "model": {"charts": charts_of}, "cells": self.cells}


def _answers(result: SsdResult, faults: bool) -> list[str]:
    """The quickest policy at each DRAM size, the slowest, and the time that more DRAM saves."""
    rows, size = result.rows, units.size
    if not faults:
        time = units.duration(min(row["seconds"] for row in rows) * 1e9)
        return [
            f"No fault reaches the flash: the program fits the device's DRAM at {time}, so a "
            "policy changes nothing. Give less --dram."
        ]
    lines, least = [], []
    for group in texts.by_size(rows):
        best, worst = (pick(group, key=lambda row: row["seconds"]) for pick in (min, max))
        least.append(best)
        text = (
            f"With {size(best['dram_bytes'])} of DRAM the policy {units.clean(best['epf'])} is "
            f"quickest: {units.duration(best['seconds'] * 1e9)}"
        )
        if worst["seconds"] > best["seconds"]:
            more = units.percent(worst["seconds"] / best["seconds"] - 1)
            text += f"; {units.clean(worst['epf'])} takes {more} more"
        lines.append(f"{text}.")
    low, high = (pick(least, key=lambda row: row["dram_bytes"]) for pick in (min, max))
    if low is not high:
        saved = 1 - high["seconds"] / low["seconds"]
        lines.append(
            f"{size(high['dram_bytes'])} instead of {size(low['dram_bytes'])} of DRAM saves "
            f"{units.percent(saved)} of the time."
        )
    return lines


def _times(rows: Sequence[declared.Row]) -> charts.Drawn:
    import altair as alt

    names = list(dict.fromkeys(units.clean(row["epf"]) for row in rows))
    sizes = sorted({row["dram_bytes"] for row in rows})
    colours = [palette.OKABE_ITO[c] for c in ("blue", "vermillion", "green", "purple", "orange")]
    data = alt.Chart(alt.NamedData("points"))
    chart = data.mark_line(point=True, strokeWidth=2).encode(
        x=alt.X("size:O", sort=[page.typeset(units.size(size)) for size in sizes],
                axis=alt.Axis(title=declared.ROWS.head("dram_bytes"), labelAngle=0)),
        y=alt.Y("value:Q", scale=alt.Scale(zero=True), axis=alt.Axis(
                title="time", labelExpr=charts.TIME_LABEL, tickCount=6)),
        color=alt.Color("policy:N", legend=alt.Legend(title=None, orient="top", columns=3),
                        scale=alt.Scale(domain=names,
                                        range=palette.cycled(colours, len(names)))),
        tooltip=charts.tooltips(policy="", size="DRAM", label="time"),
    )  # fmt: skip
    points: list[charts.Datum] = [
        {
            "policy": units.clean(row["epf"]),
            "size": page.typeset(units.size(row["dram_bytes"])),
            "value": row["seconds"] * 1e9,
            "label": page.typeset(units.duration(row["seconds"] * 1e9)),
        }
        for row in rows
    ]
    return {"spec": charts.finish(chart, 260), "points": points}


def _name(row: declared.Row) -> str:
    return f"{units.clean(row['epf'])}, {units.size(row['dram_bytes'])}"


def _cell(row: declared.Row, detail: Detail) -> Cell:
    threshold = texts.threshold_ns(row["epf"])
    # The script draws an invisible line (``shown`` 0) for a policy without a threshold.
    line: charts.Datum = {"low": threshold, "shown": 1, "label": units.duration(threshold)}
    return {
        "name": _name(row),
        "threshold": line if threshold else None,
        "bars": [
            {
                "low": bin_["low_ns"],
                "high": bin_["high_ns"],
                "value": services,
                "kind": kind,
                "label": f"{units.duration(bin_['low_ns'])} to {units.duration(bin_['high_ns'])}",
                "count": units.count(services),
            }
            for kind in _KINDS
            for bin_ in detail["service"]
            if (services := bin_[kind])
        ],
    }


def _bars(rows: Sequence[declared.Row]) -> str:
    longest = max(texts.core_seconds(row) for row in rows) or 1.0
    key = page.legend(
        (_COLOURS[colour], declared.ROWS.head(part)) for part, colour in _PARTS.items()
    )
    lines = []
    for row in rows:
        total = texts.core_seconds(row) or 1.0
        label = f"{_name(row)}: {units.duration(row['seconds'] * 1e9)}"
        segments = "".join(
            f'<span style="width:{100 * row[part] / longest:.3f}%;'
            f'background:{_COLOURS[colour]}" title="{declared.ROWS.head(part)} '
            f'{page.text(units.percent(row[part] / total))}"></span>'
            for part, colour in _PARTS.items()
        )
        lines.append(
            f'<div class="ssd-bar"><span>{page.prose(label)}</span>'
            f'<div role="img" aria-label="{page.text(label)}">{segments}</div></div>'
        )
    caption = "Time of all cores together."
    return (
        f"{key}{''.join(lines)}"
        f"<figcaption>{caption} The shares are in the table below.</figcaption>"
    )


def _histogram() -> charts.Spec:
    import altair as alt

    x = alt.X(
        "low:Q",
        scale=alt.Scale(type="log", nice=False, padding=8),
        axis=alt.Axis(
            title="time of a service",
            labelExpr=charts.TIME_LABEL,
            tickCount=6,
            labelOverlap="greedy",
            labelSeparation=8,
        ),
    )
    colours = [palette.OKABE_ITO["orange"], palette.OKABE_ITO["blue"]]
    data = alt.Chart(alt.NamedData("bars"))
    bars = data.mark_bar(opacity=0.6).encode(
        x=x,
        x2="high:Q",
        y2=alt.Y2Datum(0),
        y=alt.Y("value:Q", stack=None, axis=alt.Axis(title="services", tickCount=6,
                labelExpr=charts.COUNT_LABEL)),
        color=alt.Color("kind:N", scale=alt.Scale(domain=list(_KINDS), range=colours),
                        legend=alt.Legend(title=None, orient="top")),
        tooltip=charts.tooltips(kind="time", label="bin", count="services"),
    )  # fmt: skip
    data = alt.Chart(alt.NamedData("threshold"))
    rule = data.mark_rule(strokeDash=[4, 4], strokeWidth=2).encode(
        x="low:Q",
        opacity=alt.Opacity("shown:Q", scale=None),
        tooltip=charts.tooltips(label="threshold"),
    )
    return charts.finish(alt.layer(bars, rule), 300)


def _table(rows: Sequence[declared.Row]) -> str:
    before = ("dram_bytes", "epf", "seconds")
    after = (
        "embedded_fault_rate", "passed_share", "predicted_us_mean", "actual_us_mean",
        "flash_reads", "flash_programs", "gc_collections", "write_amplification",
    )  # fmt: skip
    left, right = (cells(declared.ROWS, names, rows) for names in (before, after))
    lines = [
        [*begin, *texts.shares(row), *end]
        for begin, row, end in zip(left, rows, right, strict=True)
    ]
    headers = declared.ROWS.heads(*before, *texts.CPU, *after)
    return page.prose_table(headers, lines, "Every policy at every size of DRAM")
