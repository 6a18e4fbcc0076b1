"""The page of a trace: what it holds, and where and when memory was touched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nearfar.report import tables, units
from nearfar.report.html import charts, heat, page

_PARTS = ("loads", "stores", "fetches")
_MOST_REGIONS = 12


def info_page(info: Mapping[str, Any], heatmap: Mapping[str, Any] | None = None) -> str:
    """A trace as one HTML file.

    Args:
        info: what ``nearfar info --format json`` prints.
        heatmap: the trace's heat map (``counts[address][time]``), if there is one.

    Returns:
        The page's text, to be written as UTF-8.

    Raises:
        NearfarError: the heat map's counts have not the shape its bins say.
    """
    drawn: dict[str, Any] = {}
    data: dict[str, object] = {"result": info, "model": {"charts": drawn}}
    scripts = ["common.js", "info.js"]
    tiles = "".join(
        f"<div><dt>{page.text(name)}</dt><dd>{page.text(page.nice(value))}</dd></div>"
        for name, value in tables.info_facts(info)
    )
    parts = []
    if heatmap is not None:
        parts.append(heat.section(heatmap))
        data["heat"] = heat.model(heatmap)
        scripts.append("heat.js")
    if info.get("regions"):
        parts.append(_regions(info["regions"], drawn))
    if info.get("working_set"):
        parts.append(_working_set(info["working_set"], drawn))
    if info.get("reuse"):
        parts.append(_reuse(info["reuse"], drawn))
    shown = {"threads", "regions", "working_set", "reuse", "records_by_kind"}
    rest = {k: v for k, v in info.items() if k not in shown}
    made = page.run_facts(rest)
    if info.get("threads"):
        made += _threads(info["threads"])
    parts.append(page.section("run", "The trace", made + page.downloads(csv=False)))
    trace = str(info.get("trace") or info.get("path") or "")
    return page.build(
        title=f"{trace or 'A trace'} - nearfar",
        kicker="nearfar: a trace",
        heading=f"What <code>{page.text(trace)}</code> touched" if trace else "What it touched",
        lead=f'<dl class="tiles">{tiles}</dl>',
        body="\n".join(parts),
        data=data,
        scripts=scripts,
    )


def regions(found: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The chart of the hottest regions: its specification and its bars."""
    shown = found[:_MOST_REGIONS]
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


def _regions(found: list[Mapping[str, Any]], drawn: dict[str, Any]) -> str:
    drawn["regions"] = regions(found)
    keys = ("records", *_PARTS, "pages")
    rows = [
        [page.text(r["name"]), *(page.text(units.count(r.get(k) or 0)) for k in keys)]
        for r in found
    ]
    legend = "".join(f'<span class="swatch part-{p}"></span> {p} ' for p in _PARTS)
    label = "References by region and kind"
    body = (
        f'<p class="key">{legend}</p>'
        + page.chart("regions", label, f"Most references: {drawn['regions']['bars'][0]['name']}.")
        + page.details("The numbers", page.table(["region", *keys], rows, label))
    )
    return page.section("regions", "Hottest regions", body)


def _working_set(points: list[Mapping[str, Any]], drawn: dict[str, Any]) -> str:
    most = max(points, key=lambda p: int(p["bytes"]))
    drawn["working"] = {
        "spec": charts.working_set(int(most["bytes"])),
        "points": [
            {
                "record": p["record"],
                "bytes": p["bytes"],
                "record_label": units.count(p["record"]),
                "bytes_label": page.nice(units.size(p["bytes"])),
            }
            for p in points
        ],
    }
    label = "Working set over time"
    caption = f"At most {units.size(most['bytes'])}, at record {units.count(most['record'])}."
    rows = [
        [page.text(units.count(p["record"])), page.text(page.nice(units.size(p["bytes"])))]
        for p in points
    ]
    numbers = page.table(["record", "bytes touched"], rows, label)
    body = page.chart("working", label, caption) + page.details("The numbers", numbers)
    return page.section("working", "Working set", body)


def _reuse(bins: list[Mapping[str, Any]], drawn: dict[str, Any]) -> str:
    total = float(sum(b["count"] for b in bins)) or 1.0
    points = [
        {
            "label": tables.reuse_label(b.get("distance_log2")),
            "count": b["count"],
            "count_label": units.count(b["count"]),
            "share_label": page.nice(units.percent(b["count"] / total)),
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
    numbers = page.table(["distance", "references", "share"], rows, label)
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
