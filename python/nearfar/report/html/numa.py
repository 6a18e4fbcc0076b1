"""The HTML page of allocations: time against size, and pictures of the filled nodes as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from nearfar import units
from nearfar.declared import numa_alloc as declared
from nearfar.numa import AllocRow, NumaResult, Published, Topology, TopologyNode
from nearfar.report import palette
from nearfar.report.html import charts, page
from nearfar.report.numa import PLACES

_KINDS = {"dram": "blue", "pmem": "vermillion", "cxl": "green"}
#: Width and height of the bar of a node, in pixels.
_WIDE, _HIGH = 46, 86
#: The mark of a published point, as an SVG path.
_CROSS = "M-1,-1L1,1M-1,1L1,-1"


class NumaPage(page.Page[NumaResult[AllocRow]]):
    """Allocations in each mode.

    Args:
        result: the result of :func:`nearfar.numa.alloc`.
        topology: its machine.
        published: measured points to compare with.
    """

    title = "Placement - nearfar"
    kicker = "nearfar: numa alloc"
    limit = 200
    row_name = "allocations"

    def __init__(
        self,
        result: NumaResult[AllocRow],
        topology: Topology,
        published: Sequence[Published] = (),
    ) -> None:
        """Write the headings."""
        super().__init__(result, result.run, len(result.rows))
        self.topology, self.published = topology, published
        self.heading = f"Memory of <code>{page.text(topology['machine'])}</code>, mode by mode"
        self.headline, *self.more = _findings(result.rows) or ["No allocation."]

    def _sections(self) -> list[str]:
        rows = self.result.rows
        legend = ", ".join(
            f'<span style="color:{palette.OKABE_ITO[colour]}">&#9632;</span> {kind}'
            for kind, colour in _KINDS.items()
            if any(node["kind"] == kind for node in self.topology["nodes"])
        )
        pictures = "".join(_figure(row, self.topology) for row in rows)
        style = '<div style="display:flex;flex-wrap:wrap;gap:1.5rem">'
        filled = "Filled: the allocation and its page tables. Empty: free. Grey: not available."
        key = f"<p>{filled} {legend}</p>"
        machine = f"{key}{style}{pictures}</div>"
        parts = [
            page.section("allocations", "The numbers", _table(rows), wide=True),
            page.section("machine", "Where pages land", machine, wide=True),
        ]
        return [self._time(), *parts] if len({row["size_bytes"] for row in rows}) > 1 else parts

    def _time(self) -> str:
        title, drawn = "Time against size", _chart(self.result.rows, self.published)
        if not drawn["points"]:
            return page.section("time", title, "<p>Nothing could be allocated.</p>", wide=True)
        crosses = any(point["source"] == "published" for point in drawn["points"])
        caption = "A line for each mode." + (" Crosses: published." if crosses else "")
        label = "Time to allocate and clear against size"
        return self._chart_section("time", title, drawn, label, caption, wide=True)


def _findings(rows: Sequence[AllocRow]) -> list[str]:
    """At each size the quickest modes (within 0.5 %), the slowest, and the modes without room."""
    lines = []
    for size in dict.fromkeys(row["size_bytes"] for row in rows):
        times = [
            (row["seconds"], row["mode"])
            for row in rows
            if row["size_bytes"] == size and row["seconds"] is not None
        ]
        failed = [row["mode"] for row in rows if row["size_bytes"] == size and not row["possible"]]
        if not times:
            lines.append(f"{units.size(size)}: no mode can allocate it.")
            continue
        best, worst = min(times), max(times)
        quickest = [mode for seconds, mode in times if seconds <= 1.005 * best[0]]
        text = f"{units.size(size)}: {', '.join(quickest)} in {_time(best[0])}"
        if worst[0] > 1.005 * best[0]:
            text += f", {units.digits(worst[0] / best[0], 2)} times as fast as {worst[1]}"
        lines.append(text + (f"; not with {', '.join(failed)}." if failed else "."))
    return lines


def _time(seconds: float) -> str:
    return f"{seconds:,.2f} s" if seconds < 10 else f"{seconds:,.1f} s"


def _figure(row: AllocRow, topology: Topology) -> str:
    """The machine with one allocation: sockets as frames, nodes as bars, links as lines."""
    landed = {entry["node"]: entry for entry in row["landed"]}
    nodes = topology["nodes"]
    sockets = sorted({node["socket"] for node in nodes})
    shapes, x = [], 4.0
    edges = []
    for socket in sockets:
        of_socket = [node for node in nodes if node["socket"] == socket]
        wide = len(of_socket) * (_WIDE + 6) + 6
        shapes.append(
            f'<rect x="{x}" y="4" width="{wide}" height="{_HIGH + 40}" rx="6" fill="none" '
            f'stroke="currentColor"/><text x="{x + 6}" y="18" font-size="11" '
            f'fill="currentColor">socket {socket}</text>'
        )
        edges.append((x, x + wide))
        for index, node in enumerate(of_socket):
            shapes.append(_node_bar(x + 6 + index * (_WIDE + 6), node, landed.get(node["node"])))
        x += wide + 26
    for left, right in zip(edges, edges[1:], strict=False):
        shapes.append(
            f'<line x1="{left[1]}" y1="70" x2="{right[0]}" y2="70" stroke="currentColor" '
            'stroke-width="3"><title>link between sockets</title></line>'
        )
    time = "impossible" if row["seconds"] is None else f"{row['seconds']:,.1f} s"
    caption = f"{row['mode']}, {units.size(row['size_bytes'])}: {time}"
    filled = ", ".join(_filled(node, landed.get(node["node"])) for node in nodes)
    return (
        f'<figure style="margin:0;max-width:100%"><svg viewBox="0 0 {x:.0f} {_HIGH + 50}" '
        f'style="width:{x:.0f}px;max-width:100%" role="img" '
        f'aria-label="{page.text(f"{caption}; {filled}")}">{"".join(shapes)}</svg>'
        f"<figcaption>{page.prose(caption)}</figcaption></figure>"
    )


def _node_bar(x: float, node: TopologyNode, entry: declared.LandedRow | None) -> str:
    """A node: its outline, its unavailable part (grey, from the top), its allocated part below."""
    y = 24
    share = _share(node, entry)
    # Rounding may give a number just below 0.
    reserved = max(1 - share - entry["free_bytes"] / node["bytes"], 0.0) if entry else 0.0
    colour = palette.OKABE_ITO[_KINDS[node["kind"]]]
    filled, grey = share * _HIGH, reserved * _HIGH
    dash = "" if entry else ' stroke-dasharray="3 3"'
    return (
        f"<g><title>{page.text(_filled(node, entry))}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDE}" height="{_HIGH}" fill="{colour}" '
        f'fill-opacity="0.08" stroke="{colour}"{dash}/>'
        f'<rect x="{x}" y="{y}" width="{_WIDE}" height="{grey:.2f}" fill="gray"/>'
        f'<rect x="{x}" y="{y + _HIGH - filled:.2f}" width="{_WIDE}" height="{filled:.2f}" '
        f'fill="{colour}"/><text x="{x + _WIDE / 2}" y="{y + _HIGH + 14}" font-size="11" '
        f'text-anchor="middle" fill="currentColor">{page.text(node["label"])}</text></g>'
    )


def _share(node: TopologyNode, entry: declared.LandedRow | None) -> float:
    """The share of a node that an allocation and its page tables fill."""
    return (entry["bytes"] + entry["tables_bytes"]) / node["bytes"] if entry else 0.0


def _filled(node: TopologyNode, entry: declared.LandedRow | None) -> str:
    """A node and its filled share, in words."""
    use = f"{100 * _share(node, entry):.1f} % filled" if entry else "not available to the kernel"
    return f"{node['label']}, {units.size(node['bytes'])}: {use}"


def _chart(rows: Sequence[AllocRow], published: Sequence[Published]) -> charts.Drawn:
    """Seconds against size, a line for each mode; published points as crosses."""
    import altair as alt

    # Published points at much larger sizes would compress the scale.
    most = 2 * max((row["size_bytes"] for row in rows), default=0)
    known = [
        *((row["mode"], row["size_bytes"], row["seconds"], "computed") for row in rows),
        *(
            (row["mode"], row["size_bytes"], row["seconds"], "published")
            for row in published
            if row["size_bytes"] <= most
        ),
    ]
    points: list[charts.Datum] = [
        {
            "mode": mode,
            "bytes": size,
            "seconds": seconds,
            "size_label": page.typeset(units.size(size)),
            "seconds_label": f"{seconds:,.2f} s",
            "source": source,
        }
        for mode, size, seconds, source in known
        if seconds is not None
    ]
    largest = max((size for _, size, seconds, _ in known if seconds is not None), default=1)
    x = alt.X("bytes:Q", axis=charts.size_axis("size", largest))
    y = alt.Y("seconds:Q", axis=alt.Axis(title="seconds", tickCount=6))
    names = list(dict.fromkeys(point["mode"] for point in points))
    colours = palette.cycled([*palette.SERIES, palette.GREY], len(names))
    colour = alt.Color(
        "mode:N",
        scale=alt.Scale(domain=names, range=colours),
        legend=alt.Legend(title=None, orient="top", columns=2, labelLimit=140),
    )
    base = alt.Chart(alt.NamedData("points")).encode(x=x, y=y, color=colour)
    line = base.transform_filter("datum.source == 'computed'").mark_line(strokeWidth=2)
    sources = ["computed", "published"]
    dots = base.mark_point(size=60, strokeWidth=2).encode(
        shape=alt.Shape(
            "source:N", scale=alt.Scale(domain=sources, range=["circle", _CROSS]), legend=None
        ),
        tooltip=charts.tooltips(mode="", size_label="size", seconds_label="time", source=""),
    )
    return {"spec": charts.finish(alt.layer(line, dots), 320), "points": points}


def _table(rows: Sequence[AllocRow]) -> str:
    reasons = any(row["why_not"] for row in rows)
    names = ("mode", "size_bytes", "seconds", "gb_per_second", *PLACES)
    headers = declared.ROWS.heads(*names, *(["why_not"] if reasons else []))

    def cells(row: AllocRow) -> list[str]:
        seconds, rate = row["seconds"], row["gb_per_second"]
        return [
            page.text(row["mode"]),
            page.prose(units.size(row["size_bytes"])),
            "impossible" if seconds is None else page.prose(f"{seconds:,.2f} s"),
            "" if rate is None else f"{rate:.2f}",
            *(page.prose(units.size(size)) if (size := row[place]) else "-" for place in PLACES),
            *([page.text(row["why_not"] or "")] if reasons else []),
        ]

    return page.table(headers, [cells(row) for row in rows], "Allocations")
