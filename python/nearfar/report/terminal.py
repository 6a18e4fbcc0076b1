"""Plots made of characters (plotext 5): time against memory size, rates against page size.

Each series has its own mark, so plots are readable without colour.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import IO

from nearfar import paging_answers as answers
from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import paging as declared
from nearfar.memory_curve import Memory, MemoryCurve
from nearfar.output import coloured
from nearfar.paging import PagingResult

MIN_COLUMNS = 44
"""The minimum width: axis labels leave no room for a plot in fewer columns."""

_MARKS = "ox+*#"
_COLOURS = ("blue", "orange", "cyan", "magenta", "red")
#: A label, and values by size in bytes.
Series = tuple[str, Sequence[tuple[int, float]]]


def paging(
    result: PagingResult,
    width: int | None = None,
    height: int = 16,
    stream: IO[str] | None = None,
    series: int = 4,
    full: bool = False,
) -> str:
    """The plots, one above the other.

    Args:
        result: the paging result.
        width: columns; by default the terminal's (80 in a pipe).
        height: lines of each plot, at least 8.
        stream: where it will be printed (standard output by default), which decides on colours.
        series: the maximum number of memory sizes, 1 to 5, evenly spaced over those studied.
        full: add the rates to the plot of time against memory size.

    Returns:
        Text that ends in a newline: the plots, or the reason for none if ``width`` is below
        :data:`MIN_COLUMNS`.
    """
    result = findings.by_place(result)
    if not result.rows:
        return "(no plot: the result has no rows)\n"
    curves = answers.memory_curves(result)
    lines: list[tuple[str, Sequence[Series], Callable[[int], float]]] = []
    if curves:
        lines.append(_memory(curves, "memory"))
    if full or not curves:
        chosen = findings.spread(findings.memories(result), min(max(series, 1), len(_MARKS)))
        faults = [
            (f"{memory.label} memory", _points(result, "fault_rate", memory)) for memory in chosen
        ]
        misses = [("", _points(result, "tlb_miss_rate", None))]
        lines += [
            (f"{declared.ROWS.column('fault_rate').axis}, by page size", faults, math.log2),
            (f"{declared.ROWS.column('tlb_miss_rate').axis}, by page size", misses, math.log2),
        ]
    return _drawn(lines, width, height, stream)


def memory(
    curves: Sequence[MemoryCurve],
    what: str,
    width: int | None = None,
    height: int = 16,
    stream: IO[str] | None = None,
) -> str:
    """The plot of time against the size of ``what``, such as "memory"; see :func:`paging`."""
    return _drawn([_memory(curves, what)], width, height, stream)


def by_size(title: str, lines: Sequence[Series], width: int = 80, height: int = 16) -> str:
    """A plain plot of series over sizes, both on logarithmic scales."""
    return units.ascii_frame(_rates(title, lines, math.log2, width, height, colour=False))


def _drawn(
    plots: Sequence[tuple[str, Sequence[Series], Callable[[int], float]]],
    width: int | None,
    height: int,
    stream: IO[str] | None,
) -> str:
    """Plots, one above the other, each with its title, series and positions of sizes."""
    target = sys.stdout if stream is None else stream
    colour = coloured(target)
    columns = shutil.get_terminal_size((80, 24)).columns if width is None else width
    if columns < MIN_COLUMNS:
        return f"(no plot: {columns} columns; it needs {MIN_COLUMNS})\n"
    height = max(height, 8)
    drawn = [_rates(title, lines, place, columns, height, colour) for title, lines, place in plots]
    text = "\n".join(drawn)
    plain = not target.isatty() or "utf" not in (getattr(target, "encoding", "") or "").lower()
    return units.ascii_frame(text) if plain else text


def _points(
    result: PagingResult, key: findings.Rate, memory: Memory | None
) -> list[tuple[int, float]]:
    found = {
        row["page_bytes"]: row[key]
        for row in result.rows
        if memory is None or findings.memory_of(row) == memory
    }
    return sorted(found.items())


def _memory(
    curves: Sequence[MemoryCurve], what: str
) -> tuple[str, Sequence[Series], Callable[[int], float]]:
    lines = [
        (
            curve.name if len(curves) > 1 else "",
            [(m.bytes, round(1 + slow, 2)) for m, slow in points],
        )
        for curve in curves[: len(_MARKS)]
        for points in [curve.slowdowns]
    ]
    title = f"times as long as with {units.size(curves[0].whole.bytes)}, by {what} size"
    return title, lines, float


def _rates(
    title: str,
    lines: Sequence[Series],
    place: Callable[[int], float],
    width: int,
    height: int,
    colour: bool,
) -> str:
    # Zero has no logarithm: those points are left out and counted in the title.
    zeros = sum(1 for _, points in lines for _, value in points if value <= 0)
    if not any(value > 0 for _, points in lines for _, value in points):
        return f"{title}: zero at every page size\n"
    more = f" ({zeros} zeros left out)" if zeros else ""
    return _plot(title + more, lines, place, width, height, colour)


def _plot(
    title: str,
    lines: Sequence[Series],
    place: Callable[[int], float],
    width: int,
    height: int,
    colour: bool,
) -> str:
    """Values above 0, on a logarithmic scale, over sizes in bytes, at the position ``place``."""
    import plotext

    values = [value for _, points in lines for _, value in points if value > 0]
    sizes = sorted({size for _, points in lines for size, _ in points})
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    plotext.clear_figure()
    # Keep the terminal's background.
    plotext.theme("clear")
    # Otherwise plotext limits the width to that of the terminal at its import (80 in a pipe).
    plotext.limitsize(False, False)
    plotext.plotsize(width, height - 1)
    for index, (label, points) in enumerate(lines):
        drawn = [(place(size), math.log10(v)) for size, v in points if v > 0]
        if drawn:
            plotext.scatter(
                [x for x, _ in drawn],
                [y for _, y in drawn],
                marker=_MARKS[index],
                color=_COLOURS[index],
                label=label or None,
            )
    # Plotext drops some of the labels that overlap, and not always the same ones.
    labels = {size: units.size(size).replace(" ", "") for size in sizes}
    room = max(map(len, labels.values())) + 2
    gap = room * (place(sizes[-1]) - place(sizes[0])) / (width - 10)
    shown = sizes[:1]
    for size in sizes[1:]:
        if place(size) - place(shown[-1]) >= gap:
            shown.append(size)
    plotext.xticks([place(size) for size in shown], [labels[size] for size in shown])
    step = max(1, -(-(high - low) // max(2, height // 3)))
    ticks = list(range(low, high + 1, step))
    plotext.yticks(ticks, [units.digits(10.0**t, 1) for t in ticks])
    plotext.ylim(low, high)
    text = str(plotext.build())
    plotext.clear_figure()
    if not colour:
        text = plotext.uncolorize(text)
    # Plotext drops a title that is wider than the frame.
    return "\n".join([title[:width], *(line.rstrip() for line in text.splitlines())]) + "\n"
