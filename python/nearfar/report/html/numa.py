"""The page of allocations: the machine drawn, how full each node is, time against size.

The pictures are SVG in the page itself: they need no script, and each shape says in its title what
it stands for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from nearfar import units
from nearfar.declared import numa_alloc as declared
from nearfar.report import palette
from nearfar.report.html import page

_COLOURS = ("blue", "orange", "green", "vermillion", "sky", "purple", "black")
_KINDS = {"dram": "blue", "pmem": "vermillion", "cxl": "green"}
_WIDE, _HIGH = 46, 86
_LEFT, _BOTTOM, _PLOT_WIDE, _PLOT_HIGH = 96, 46, 620, 320

Row = Mapping[str, Any]


class NumaPage(page.Page):
    """Allocations, mode by mode.

    Args:
        result: what ``nearfar numa alloc --format json`` prints.
        topology: what :func:`nearfar.numa.topology` returns for its machine.
        published: points to compare with, of ``mode``, ``size_bytes`` and ``seconds``.
    """

    title = "Placement - nearfar"
    kicker = "nearfar: numa alloc"
    limit = 200
    row_name = "allocations"
    scripts = ("common.js",)

    def __init__(self, result: Row, topology: Row, published: Sequence[Row] = ()) -> None:
        """Keep the nodes to draw and the points to compare with."""
        super().__init__(result)
        self.topology, self.published = topology, published
        self.heading = f"Memory of <code>{page.text(topology['machine'])}</code>, mode by mode"
        self.headline = _finding(result["rows"])

    def _sections(self) -> list[str]:
        rows: Sequence[Row] = self.result["rows"]
        legend = ", ".join(
            f'<span style="color:{palette.OKABE_ITO[colour]}">&#9632;</span> {kind}'
            for kind, colour in _KINDS.items()
            if any(node["kind"] == kind for node in self.topology["nodes"])
        )
        pictures = "".join(_figure(row, self.topology) for row in rows)
        style = '<div style="display:flex;flex-wrap:wrap;gap:1.5rem">'
        filled = "Filled: the allocation and its page tables. Empty: free. Grey: not given out."
        key = f"<p>{filled} {legend}</p>"
        machine = f"{key}{style}{pictures}</div>"
        return [
            page.section("machine", "Where pages land", machine, wide=True),
            page.section("time", "Time against size", _chart(rows, self.published), wide=True),
            page.section("allocations", "The numbers", _table(rows), wide=True),
        ]


def _finding(rows: Sequence[Row]) -> str:
    largest: dict[str, int] = {}
    for row in rows:
        if row["possible"]:
            largest[row["mode"]] = max(largest.get(row["mode"], 0), row["size_bytes"])
    parts = [f"{mode} to {units.size(size)}" for mode, size in largest.items()]
    return "Allocations that can be done: " + (", ".join(parts) if parts else "none") + "."


def _figure(row: Row, topology: Mapping[str, Any]) -> str:
    """The machine with one allocation: sockets as frames, nodes as vessels, links between."""
    landed = {entry["node"]: entry for entry in row["landed"]}
    nodes = topology["nodes"]
    sockets = sorted({node["socket"] for node in nodes})
    shapes, x = [], 4.0
    centres = []
    for socket in sockets:
        own = [node for node in nodes if node["socket"] == socket]
        wide = len(own) * (_WIDE + 6) + 6
        shapes.append(
            f'<rect x="{x}" y="4" width="{wide}" height="{_HIGH + 40}" rx="6" fill="none" '
            f'stroke="currentColor"/><text x="{x + 6}" y="18" font-size="11" '
            f'fill="currentColor">socket {socket}</text>'
        )
        centres.append((x, x + wide))
        for place, node in enumerate(own):
            shapes.append(_node_bar(x + 6 + place * (_WIDE + 6), node, landed.get(node["node"])))
        x += wide + 26
    for left, right in zip(centres, centres[1:], strict=False):
        shapes.append(
            f'<line x1="{left[1]}" y1="70" x2="{right[0]}" y2="70" stroke="currentColor" '
            'stroke-width="3"><title>link between sockets</title></line>'
        )
    time = f"{row['seconds']:,.1f} s" if row["possible"] else "impossible"
    caption = f"{row['mode']}, {units.size(row['size_bytes'])}: {time}"
    filled = ", ".join(_filled(node, landed.get(node["node"])) for node in nodes)
    return (
        f'<figure style="margin:0;max-width:100%"><svg viewBox="0 0 {x:.0f} {_HIGH + 50}" '
        f'style="width:{x:.0f}px;max-width:100%" role="img" '
        f'aria-label="{page.text(f"{caption}; {filled}")}">{"".join(shapes)}</svg>'
        f"<figcaption>{page.text(page.typeset(caption))}</figcaption></figure>"
    )


def _node_bar(x: float, node: Row, entry: Row | None) -> str:
    """A node: its outline, what is kept (grey), and what the allocation fills, from below."""
    y = 24
    share = _share(node, entry)
    kept = max(1 - share - entry["free_bytes"] / node["bytes"], 0.0) if entry else 0.0
    colour = palette.OKABE_ITO[_KINDS[node["kind"]]]
    filled, grey = share * _HIGH, kept * _HIGH
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


def _share(node: Row, entry: Row | None) -> float:
    """How full an allocation and its tables make a node."""
    return (entry["bytes"] + entry["tables_bytes"]) / node["bytes"] if entry else 0.0


def _filled(node: Row, entry: Row | None) -> str:
    """The same in words."""
    use = f"{100 * _share(node, entry):.1f} % filled" if entry else "not the kernel's"
    return f"{node['label']}, {units.size(node['bytes'])}: {use}"


def _chart(rows: Sequence[Row], published: Sequence[Row]) -> str:
    """Seconds against GiB, a line per mode; published points as crosses."""
    done = [row for row in rows if row["possible"]]
    points = [*done, *published]
    if not points:
        return "<p>Nothing could be allocated.</p>"
    most_x = max(point["size_bytes"] for point in points) / 2**30
    most_y = max(point["seconds"] for point in points) or 1.0
    shapes = [*_axis(most_x, "GiB", False), *_axis(most_y, "seconds", True)]

    def place(point: Row) -> tuple[float, float]:
        x = _LEFT + point["size_bytes"] / 2**30 / most_x * _PLOT_WIDE
        return x, 12 + _PLOT_HIGH * (1 - point["seconds"] / most_y)

    names = list(dict.fromkeys(row["mode"] for row in points))
    for index, mode in enumerate(names):
        colour = palette.OKABE_ITO[_COLOURS[index % len(_COLOURS)]]
        ink = "currentColor" if colour == "#000000" else colour
        own = sorted((row for row in done if row["mode"] == mode), key=lambda r: r["size_bytes"])
        line = " ".join("{:.1f},{:.1f}".format(*place(row)) for row in own)
        shapes.append(f'<polyline points="{line}" fill="none" stroke="{ink}" stroke-width="2"/>')
        for row in own:
            x, y = place(row)
            label = f"{mode}, {units.size(row['size_bytes'])}: {row['seconds']:,.2f} s"
            shapes.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{ink}">'
                f"<title>{page.text(label)}</title></circle>"
            )
        for point in (p for p in published if p["mode"] == mode):
            x, y = place(point)
            label = f"published: {mode}, {units.size(point['size_bytes'])}: {point['seconds']} s"
            shapes.append(
                f'<path d="M{x - 7:.1f} {y - 7:.1f}L{x + 7:.1f} {y + 7:.1f}M{x - 7:.1f} '
                f'{y + 7:.1f}L{x + 7:.1f} {y - 7:.1f}" stroke="{ink}" stroke-width="2">'
                f"<title>{page.text(label)}</title></path>"
            )
        shapes.append(
            f'<text x="{_LEFT + 14}" y="{32 + 24 * index}" font-size="13" fill="currentColor">'
            f'<tspan fill="{ink}">&#9679;</tspan> {page.text(mode)}</text>'
        )
    caption = "A line for each mode." + (" Crosses: published." if published else "")
    wide, high = _LEFT + _PLOT_WIDE + 44, 12 + _PLOT_HIGH + _BOTTOM
    return (
        '<figure><div class="scroll" role="region" tabindex="0" aria-label="Time against size">'
        f'<svg viewBox="0 0 {wide} {high}" style="width:100%;max-width:{wide}px" '
        f'role="img" aria-label="Time to allocate and clear against size">{"".join(shapes)}</svg>'
        f"</div><figcaption>{caption}</figcaption></figure>"
    )


def _axis(most: float, name: str, upright: bool) -> list[str]:
    """Grid lines at round values, their labels, the name."""
    step = 10 ** math.floor(math.log10(most))
    step = next(step * part for part in (0.2, 0.5, 1, 2) if most / (step * part) <= 6)
    shapes = []
    for index in range(int(most / step) + 1):
        share = index * step / most
        label = f"{index * step:,.10g}"
        if upright:
            y = 12 + _PLOT_HIGH * (1 - share)
            ends = f'x1="{_LEFT}" x2="{_LEFT + _PLOT_WIDE}" y1="{y:.1f}" y2="{y:.1f}"'
            spot = f'x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end"'
        else:
            x = _LEFT + share * _PLOT_WIDE
            ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{12 + _PLOT_HIGH}"'
            spot = f'x="{x:.1f}" y="{12 + _PLOT_HIGH + 18}" text-anchor="middle"'
        shapes.append(f'<line {ends} stroke="currentColor" stroke-opacity="0.15"/>')
        shapes.append(f'<text {spot} font-size="12" fill="currentColor">{label}</text>')
    spot = (
        f'transform="translate(14 {12 + _PLOT_HIGH / 2}) rotate(-90)"'
        if upright
        else f'x="{_LEFT + _PLOT_WIDE / 2}" y="{12 + _PLOT_HIGH + 38}"'
    )
    shapes.append(
        f'<text {spot} font-size="13" text-anchor="middle" fill="currentColor">{name}</text>'
    )
    return shapes


def _table(rows: Sequence[Row]) -> str:
    places = ("local_dram_bytes", "remote_dram_bytes", "local_far_bytes", "remote_far_bytes")
    figures = ("seconds", "gb_per_second", *places, "why_not")
    headers = declared.ROWS.heads("mode", "size_bytes", *figures)

    def cells(row: Row) -> list[str]:
        done = row["possible"]
        return [
            page.text(row["mode"]),
            page.text(page.typeset(units.size(row["size_bytes"]))),
            page.text(page.typeset(f"{row['seconds']:,.2f} s")) if done else "impossible",
            f"{row['gb_per_second']:.2f}" if done else "",
            *(page.text(page.typeset(units.size(row[key]))) if row[key] else "-" for key in places),
            page.text(row["why_not"] or ""),
        ]

    return page.table(headers, [cells(row) for row in rows], "Allocations")
