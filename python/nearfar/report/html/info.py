"""The page of a trace: what it holds, and where and when memory was touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearfar import units
from nearfar.declared import info as declared
from nearfar.report import tables
from nearfar.report.html import charts, heat, page
from nearfar.trace import facts

_PARTS = ("loads", "stores", "fetches")
#: As in charts, by the scheme of the page.
_COLOURS = ("var(--translation)", "var(--data)", "var(--third)")
_MAX_REGIONS = 12


class InfoPage(page.Page):
    """A trace: what it holds, and where and when memory was touched.

    Args:
        result: what ``nearfar info --format json`` prints.
        heatmap: the trace's heat map (``counts[address][time]``), if there is one.

    Raises:
        NearfarError: the heat map's counts have not the shape its bins say.
    """

    kicker = "nearfar: a trace"
    made_title = "The trace"
    hidden = ("threads", "regions", "working_set", "reuse", "records_by_kind")

    def __init__(self, result: Mapping[str, Any], heatmap: Mapping[str, Any] | None = None) -> None:
        """Keep the heat map."""
        super().__init__(result)
        self.heatmap = heatmap
        trace = str(result.get("trace") or result.get("path") or "")
        self.title = f"{trace or 'A trace'} - nearfar"
        self.heading = (
            f"What <code>{page.name(trace)}</code> touched" if trace else "What it touched"
        )

    def _lead(self) -> str:
        tiles = "".join(
            f"<div><dt>{page.text(name)}</dt><dd>{page.text(page.typeset(value))}</dd></div>"
            for name, value in facts(self.result)
        )
        return f'<dl class="tiles">{tiles}</dl>'

    def _sections(self) -> list[str]:
        parts = [] if self.heatmap is None else [heat.section(self.heatmap)]
        for key, draw in (("regions", _regions), ("working_set", _working_set), ("reuse", _reuse)):
            if self.result.get(key):
                parts.append(draw(self.result[key], self.charts))
        return parts

    def _made(self) -> str:
        shown = {key: value for key, value in self.result.items() if key not in self.hidden}
        threads = self.result.get("threads")
        return page.run_facts(shown) + (_threads(threads) if threads else "")


def regions(found: list[Mapping[str, Any]]) -> charts.Drawn:
    """The chart of the hottest regions: its specification and its bars."""
    shown = found[:_MAX_REGIONS]
    names = [units.clean(r["name"]) or "(no name)" for r in shown]
    bars = [
        {
            "name": name,
            "part": part,
            "order": order,
            "count": region.get(part) or 0,
            "count_label": units.count(region.get(part) or 0),
        }
        for name, region in zip(names, shown, strict=True)
        for order, part in enumerate(_PARTS)
    ]
    return {"spec": charts.regions(names, _PARTS), "bars": bars}


def _regions(found: list[Mapping[str, Any]], drawn: dict[str, charts.Drawn]) -> str:
    drawn["regions"] = regions(found)
    keys = ("records", *_PARTS, "pages")
    rows = [
        [page.text(r["name"]), *(page.text(units.count(r.get(k) or 0)) for k in keys)]
        for r in found
    ]
    legend = page.legend(zip(_COLOURS, _PARTS, strict=True))
    label = "References by region and kind"
    body = (
        legend
        + page.chart("regions", label, f"Most references: {drawn['regions']['bars'][0]['name']}.")
        + page.details(
            "The numbers", page.table(declared.REGIONS_ROWS.heads("name", *keys), rows, label)
        )
    )
    return page.section("regions", "Hottest regions", body)


def _working_set(points: list[Mapping[str, Any]], drawn: dict[str, charts.Drawn]) -> str:
    resident = points[0].get("resident_bytes") is not None
    body = _over_time(points, drawn, "working", "bytes", "Working set over time")
    title = "Working set"
    if resident:
        title = "Working set and resident set"
        label = "Resident set over time"
        body += _over_time(points, drawn, "resident", "resident_bytes", label)
    keys = ("bytes", "resident_bytes") if resident else ("bytes",)
    headers = declared.WORKING_SET_ROWS.heads("record", *keys)
    rows = [
        [
            page.text(units.count(p["record"])),
            *(page.text(page.typeset(units.size(p[key]))) for key in keys),
        ]
        for p in points
    ]
    body += page.details("The numbers", page.table(headers, rows, f"{title} over time"))
    return page.section("working", title, body)


def _over_time(
    points: list[Mapping[str, Any]],
    drawn: dict[str, charts.Drawn],
    name: str,
    key: str,
    label: str,
) -> str:
    """A chart of the bytes at each point, and its caption."""
    most = max(points, key=lambda p: int(p[key]))
    drawn[name] = {
        "spec": charts.over_time(int(most[key]), declared.WORKING_SET_ROWS.head(key)),
        "points": [
            {
                "record": p["record"],
                "bytes": p[key],
                "record_label": units.count(p["record"]),
                "bytes_label": page.typeset(units.size(p[key])),
            }
            for p in points
        ],
    }
    caption = f"At most {units.size(most[key])}, at record {units.count(most['record'])}."
    return page.chart(name, label, caption)


def _reuse(bins: list[Mapping[str, Any]], drawn: dict[str, charts.Drawn]) -> str:
    total = float(sum(b["count"] for b in bins)) or 1.0
    points = [
        {
            "label": tables.reuse_label(b.get("distance_log2")),
            "count": b["count"],
            "count_label": units.count(b["count"]),
            "share_label": page.typeset(units.percent(b["count"] / total)),
        }
        for b in bins
    ]
    drawn["reuse"] = {"spec": charts.reuse([p["label"] for p in points]), "points": points}
    top = max(points, key=lambda p: int(p["count"]))
    label = "References by the distinct pages touched between two uses of a page"
    caption = f"The most frequent distance is {top['label']}: {top['share_label']} of references."
    rows = [
        [page.text(p["label"]), page.text(p["count_label"]), page.text(p["share_label"])]
        for p in points
    ]
    heads = [*declared.REUSE_ROWS.heads("distance_log2", "count"), "share"]
    numbers = page.table(heads, rows, label)
    body = page.chart("reuse", label, caption) + page.details("The numbers", numbers)
    return page.section("reuse", "Reuse", body)


def _threads(threads: list[Any]) -> str:
    rows = [
        [page.text(units.count(t.get(k) or 0)) for k in ("index", "process", "records")]
        + [page.text(units.count(t.get("instructions") or 0))]
        for t in threads
        if isinstance(t, Mapping)
    ]
    headers = ["thread", "process", "records", "instructions"]
    return page.details("The threads", page.table(headers, rows, "Threads of the program"))
