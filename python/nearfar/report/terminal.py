"""Plots made of characters (plotext 5): time against memory size, rates against page size.

Each series has its own mark, so plots are readable without colour.
"""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple

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


class _Plot(NamedTuple):
    """A title, the series, and the function from a size to its position on the axis."""

    title: str
    series: Sequence[Series]
    position: Callable[[int], float]


def paging(
    result: PagingResult,
    width: int | None = None,
    height: int = 16,
    stream: IO[str] | None = None,
    full: bool = False,
) -> str:
    """The plots, one above the other.

    Args:
        result: the paging result.
        width: columns; by default the terminal's (80 in a pipe).
        height: lines of each plot, at least 8.
        stream: where the plots are printed (standard output by default), which decides on colours.
        full: add the rates to the plot of time against memory size. Fault rates are of at most
            four memory sizes, evenly spaced over those studied.

    Returns:
        Text that ends in a newline: the plots, or the reason for none if ``width`` is below
        :data:`MIN_COLUMNS`.
    """
    result = findings.with_machine_names(result)
    if not result.rows:
        return "(no plot: the result has no rows)\n"
    curves = answers.memory_curves(result)
    plots = [_memory(curves, "memory")] if curves else []
    if full or not curves:
        chosen = findings.spread(findings.memories(result), 4)
        faults = [
            (f"{memory.label} memory", _points(result, "fault_rate", memory)) for memory in chosen
        ]
        misses = [("", _points(result, "tlb_miss_rate", None))]
        axis = {name: declared.ROWS.column(name).axis for name in ("fault_rate", "tlb_miss_rate")}
        plots += [
            _Plot(f"{axis['fault_rate']}, by page size", faults, math.log2),
            _Plot(f"{axis['tlb_miss_rate']}, by page size", misses, math.log2),
        ]
    return _drawn(plots, width, height, stream)


def memory(curves: Sequence[MemoryCurve], what: str) -> str:
    """The plot of time against the size of ``what``, such as "memory"; see :func:`paging`."""
    return _drawn([_memory(curves, what)])


def by_size(title: str, lines: Sequence[Series], width: int = 80, height: int = 16) -> str:
    """A plain plot of series over sizes, both on logarithmic scales."""
    plot = _Plot(title, lines, math.log2)
    return units.ascii_frame(_text(plot, width, height, colour=False))


def _drawn(
    plots: Sequence[_Plot],
    width: int | None = None,
    height: int = 16,
    stream: IO[str] | None = None,
) -> str:
    target = sys.stdout if stream is None else stream
    colour = coloured(target)
    columns = shutil.get_terminal_size((80, 24)).columns if width is None else width
    if columns < MIN_COLUMNS:
        return f"(no plot: {columns} columns; it needs {MIN_COLUMNS})\n"
    text = "\n".join(_text(plot, columns, max(height, 8), colour) for plot in plots)
    plain = not target.isatty() or "utf" not in (getattr(target, "encoding", "") or "").lower()
    return units.ascii_frame(text) if plain else text


def _points(
    result: PagingResult, key: findings.Rate, memory: Memory | None
) -> list[tuple[int, float]]:
    """Rates by page size; without ``memory`` (TLB misses), of the last row of each size."""
    rates = {
        row["page_bytes"]: row[key]
        for row in result.rows
        if memory is None or findings.memory_of(row) == memory
    }
    return sorted(rates.items())


def _memory(curves: Sequence[MemoryCurve], what: str) -> _Plot:
    # Times are rounded: 0.999 would begin the axis at 0.1.
    lines = [
        (
            curve.name if len(curves) > 1 else "",
            [(memory.bytes, round(1 + slower, 2)) for memory, slower in curve.slowdowns],
        )
        for curve in curves[: len(_MARKS)]
    ]
    title = f"time as a multiple of that with {units.size(curves[0].whole.bytes)}, by {what} size"
    return _Plot(title, lines, float)


def _text(plot: _Plot, width: int, height: int, colour: bool) -> str:
    """A plot as text: values on a logarithmic scale over sizes."""
    import plotext

    title, lines, position = plot
    # Zero has no logarithm: the title counts these points instead.
    zeros = sum(value <= 0 for _, points in lines for _, value in points)
    values = [value for _, points in lines for _, value in points if value > 0]
    if not values:
        return f"{title}: zero at every size\n"
    title += f" ({zeros} zeros left out)" if zeros else ""
    sizes = sorted({size for _, points in lines for size, _ in points})
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    plotext.clear_figure()
    # Keep the terminal's background.
    plotext.theme("clear")
    # Otherwise plotext limits the width to that of the terminal at its import (80 in a pipe).
    plotext.limitsize(False, False)
    plotext.plotsize(width, height - 1)  # The title takes a line.
    for index, (label, points) in enumerate(lines):
        drawn = [(position(size), math.log10(v)) for size, v in points if v > 0]
        if drawn:
            plotext.scatter(
                *zip(*drawn, strict=True),
                marker=_MARKS[index],
                color=_COLOURS[index],
                label=label or None,
            )
    # Plotext drops overlapping labels unpredictably, so choose them here.
    labels = {size: units.size(size).replace(" ", "") for size in sizes}
    room = max(map(len, labels.values())) + 2
    # About 10 columns are the labels of the other axis.
    gap = room * (position(sizes[-1]) - position(sizes[0])) / (width - 10)
    shown = sizes[:1]
    for size in sizes[1:]:
        if position(size) - position(shown[-1]) >= gap:
            shown.append(size)
    plotext.xticks(list(map(position, shown)), [labels[size] for size in shown])
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
