"""The page of a trace: its contents, and where and when memory was touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from nearfar import units
from nearfar.declared import info as declared
from nearfar.info import Info, Thread
from nearfar.report import tables
from nearfar.report.html import charts, heat, page
from nearfar.trace import facts

#: Kinds of references to a region, and their colours, which the page's colour scheme sets.
_Part = Literal["loads", "stores", "fetches"]
_PARTS: Final[tuple[_Part, ...]] = get_args(_Part)
_COLOURS = ("var(--translation)", "var(--data)", "var(--third)")
_MAX_REGIONS = 12
#: Columns with a chart over time.
_Set = Literal["bytes", "resident_bytes"]


class InfoPage(page.Page[Info]):
    """A trace: its contents, and where and when memory was touched.

    Raises:
        NearfarError: the shape of the heat map does not match its bins.
    """

    kicker = "nearfar: a trace"
    provenance_title = "The trace"
    hidden = ("threads", "regions", "working_set", "reuse", "records_by_kind", "heatmap")

    def __init__(self, result: Info) -> None:
        """Write the headings."""
        super().__init__(result, result)  # An Info is also its own record of the run.
        self.found = result.content
        trace = self.found.get("trace", "")
        self.title = f"{trace or 'A trace'} - nearfar"
        self.heading = (
            f"What <code>{page.name(trace)}</code> touched" if trace else "What it touched"
        )

    def _lead(self) -> str:
        tiles = "".join(
            f"<div><dt>{page.text(name)}</dt><dd>{page.prose(value)}</dd></div>"
            for name, value in facts(self.found)
        )
        return f'<dl class="tiles">{tiles}</dl>'

    def _sections(self) -> list[str]:
        found, parts = self.found, []
        if "heatmap" in found:
            parts.append(heat.section(found["heatmap"]))
        if found.get("regions"):
            parts.append(self._regions(found["regions"]))
        if found.get("working_set"):
            parts.append(self._working_set(found["working_set"]))
        if found.get("reuse"):
            parts.append(self._reuse(found["reuse"]))
        return parts

    def _provenance(self) -> str:
        threads = self.found.get("threads")
        return super()._provenance() + (_threads(threads) if threads else "")

    def _regions(self, found: Sequence[declared.RegionsRow]) -> str:
        drawn = self.charts["regions"] = regions(found)
        names = ("name", *tables.REGION_COUNTS)
        cells = page.cells(declared.REGIONS_ROWS, names, found)
        label = "References by region and kind"
        table = page.table(declared.REGIONS_ROWS.heads(*names), cells, label)
        body = (
            page.legend(zip(_COLOURS, _PARTS, strict=True))
            + page.chart("regions", label, f"Most references: {drawn['bars'][0]['name']}.")
            + page.details("The numbers", table)
        )
        return page.section("regions", "Hottest regions", body)

    def _working_set(self, points: Sequence[declared.WorkingSetRow]) -> str:
        title, keys = "Working set", ["bytes"]
        body = self._over_time(points, "working", "bytes", "Working set over time")
        if points[0]["resident_bytes"] is not None:
            title, keys = "Working set and resident set", ["bytes", "resident_bytes"]
            body += self._over_time(points, "resident", "resident_bytes", "Resident set over time")
        heads = declared.WORKING_SET_ROWS.heads("record", *keys)
        cells = page.cells(declared.WORKING_SET_ROWS, ("record", *keys), points)
        body += page.details("The numbers", page.table(heads, cells, f"{title} over time"))
        return page.section("working", title, body)

    def _over_time(
        self, points: Sequence[declared.WorkingSetRow], name: str, key: _Set, label: str
    ) -> str:
        """A chart of a set over time, and its caption."""
        largest = max(points, key=lambda p: p[key] or 0)
        size = largest[key] or 0
        self.charts[name] = {
            "spec": charts.over_time(size, declared.WORKING_SET_ROWS.head(key)),
            "points": [
                {
                    "record": p["record"],
                    "bytes": p[key],
                    "record_label": units.count(p["record"]),
                    "bytes_label": page.typeset(units.size(p[key] or 0)),
                }
                for p in points
            ],
        }
        caption = f"At most {units.size(size)}, at record {units.count(largest['record'])}."
        return page.chart(name, label, caption)

    def _reuse(self, bins: Sequence[declared.ReuseRow]) -> str:
        total = float(sum(b["count"] for b in bins)) or 1.0
        labels = [tables.reuse_label(b["distance_log2"]) for b in bins]
        counts = [units.count(b["count"]) for b in bins]
        shares = [page.typeset(units.percent(b["count"] / total)) for b in bins]
        cells = list(zip(labels, counts, shares, strict=True))
        points: list[charts.Datum] = [
            {"label": label, "count": b["count"], "count_label": count, "share_label": share}
            for b, (label, count, share) in zip(bins, cells, strict=True)
        ]
        top = max(range(len(bins)), key=lambda index: bins[index]["count"])
        label = "References by the distinct pages touched between two uses of a page"
        heads = [*declared.REUSE_ROWS.heads("distance_log2", "count"), "share"]
        numbers = page.table(heads, [list(map(page.text, row)) for row in cells], label)
        return self._chart_section(
            "reuse",
            "Reuse",
            {"spec": charts.reuse(labels), "points": points},
            label,
            f"The most frequent distance is {labels[top]}: {shares[top]} of references.",
            more=page.details("The numbers", numbers),
        )


def regions(found: Sequence[declared.RegionsRow]) -> charts.Drawn:
    """The chart of the hottest regions."""
    shown = found[:_MAX_REGIONS]
    names = [units.clean(r["name"]) or "(no name)" for r in shown]
    bars: list[charts.Datum] = [
        {
            "name": name,
            "part": part,
            "order": order,
            "count": region[part],
            "count_label": units.count(region[part]),
        }
        for name, region in zip(names, shown, strict=True)
        for order, part in enumerate(_PARTS)
    ]
    return {"spec": charts.regions(names, _PARTS), "bars": bars}


def _threads(threads: Sequence[Thread]) -> str:
    rows = [
        list(map(units.count, (t["index"], t["process"], t["records"], t["instructions"])))
        for t in threads
    ]
    headers = ["thread", "process", "records", "instructions"]
    return page.details("The threads", page.table(headers, rows, "Threads of the program"))
