"""Results as text tables (Rich).

On a terminal, tables fit its width. In a pipe or file they are plain ASCII text, wide enough that
nothing is cut. :func:`nearfar.output.coloured` decides on colours.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Final, Literal, get_args

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from nearfar import paging_answers as answers
from nearfar import paging_findings as findings
from nearfar import units
from nearfar.declared import info as info_declared
from nearfar.declared import paging as paging_declared
from nearfar.info import Content, Thread
from nearfar.memory_curve import Memory
from nearfar.output import coloured
from nearfar.paging import PagingResult
from nearfar.phases import MOST, Phase, phases
from nearfar.report.cells import cells, optional
from nearfar.report.fitted import DETAIL, KEY, PathText, Prose, Table
from nearfar.trace import facts

if TYPE_CHECKING:
    import pyarrow

_PIPE_WIDTH = 200
_VERDICT_STYLE = {"good": "green", "fair": "yellow", "bad": "bold red"}


def console(stream: IO[str] | None = None, width: int | None = None) -> Console:
    """A console for ``stream`` (standard output by default) that follows the module's rules.

    Args:
        stream: where to print.
        width: in characters; by default the terminal's, or ``COLUMNS`` or 200 in a pipe.
    """
    target = sys.stdout if stream is None else stream
    terminal = target.isatty()
    if width is None and not terminal:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdigit() and int(columns) > 0 else _PIPE_WIDTH
    colour = coloured(target)
    return Console(
        file=target,
        width=width,
        force_terminal=terminal or colour,
        no_color=not colour,
        color_system=("auto" if terminal else "standard") if colour else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def paging(result: PagingResult, full: bool = False) -> RenderableType:
    """The paging study: the answers and the best page sizes; every row and the fits if ``full``."""
    result = findings.with_machine_names(result)
    parts: list[RenderableType] = [Text("\n".join(answers.answers(result)), style="bold")]
    if findings.filtered(result.run):
        parts.append(Text(units.clean(f"Based on the {result.run['view']}.")))
    parts.append(Text(""))
    parts.append(paging_rows(result) if full else best_pages(result))
    if result.run["options"].get("view") == "machine":
        machines = [findings.of_machine(result, name) for name in findings.machines(result)]
        for of_machine in machines or [result]:
            parts += [Text(""), time_parts(of_machine)]
    elif full and result.fits:
        parts += [Text(""), fits(result)]
    return Group(*parts)


def _peak(result: PagingResult) -> str:
    """The peak resident set, if memory sizes are percentages of it; else empty."""
    peak = result.run.get("peak_resident_bytes")
    if peak is None:
        return ""
    touched = units.size(result.run["footprint_bytes"])
    return (
        f"; memory sizes are shares of the peak resident set, {units.size(peak)} "
        f"(footprint {touched})"
    )


def best_pages(result: PagingResult) -> Table:
    """The best page of each memory size: a column per storage, or details of a single storage."""
    best = findings.best_pages(result)
    names = findings.storages(result)
    if len(names) == 1:
        return _best_pages_of(result, names[0])
    table = Table(f"Best page, and its time per reference against 4 KiB{_peak(result)}")
    table.add_column(paging_declared.ROWS.head("memory_bytes"), justify="right", importance=KEY)
    table.add_columns(map(units.clean, names), justify="right")
    for memory in findings.memories(result):
        of_memory = [best.get((memory, name)) for name in names]
        table.add_row(memory.full_label, *("-" if b is None else _best_cell(b) for b in of_memory))
    return table


def _best_pages_of(result: PagingResult, storage: str) -> Table:
    best = findings.best_pages(result)
    table = Table(f"Best page on {units.clean(storage)}, and its time per reference{_peak(result)}")
    heads = paging_declared.ROWS.heads
    table.add_columns(heads("memory_bytes", "page_bytes"), justify="right", importance=KEY)
    names = ("total_ns", "translation_ns", "data_ns", "tlb_miss_rate", "fault_rate")
    total, *others = heads(*names)
    table.add_columns((total, "vs 4 KiB", *others), justify="right")
    for memory in findings.memories(result):
        found = best.get((memory, storage))
        if found is not None:
            ((total, *others),) = cells(paging_declared.ROWS, names, [found.row])
            page = Text(units.size(found.page_bytes), style="bold")
            table.add_row(memory.full_label, page, total, change(found), *others)
    return table


def paging_rows(result: PagingResult) -> Table:
    """Every row of the study; the best page of each memory size and storage has a star."""
    best = {(b.memory, b.storage): b.page_bytes for b in findings.best_pages(result).values()}
    table = Table("Every page size, memory size and storage (* best page)")
    head = paging_declared.ROWS.head
    table.add_column(head("storage"), importance=KEY)
    table.add_columns(
        (head("memory_bytes"), head("page_bytes"), ""), justify="right", importance=KEY
    )
    names = ("frames", "tlb_miss_rate", "faults", "fault_rate", "dirty_evictions",
             "translation_ns", "data_ns", "total_ns")  # fmt: skip
    importance = {"total_ns": KEY, "frames": DETAIL, "faults": DETAIL, "dirty_evictions": DETAIL}
    for name in names:
        table.add_column(head(name), justify="right", importance=importance.get(name, 1))
    last: tuple[Memory, str] | None = None
    order = {name: i for i, name in enumerate(findings.storages(result))}
    rows = sorted(
        result.rows,
        key=lambda row: (order[row["storage"]], row["memory_bytes"], row["page_bytes"]),
    )
    for row, numbers in zip(rows, cells(paging_declared.ROWS, names, rows), strict=True):
        key = (findings.memory_of(row), row["storage"])
        if last is not None and key != last:
            table.add_section()
        last = key
        is_best = best[key] == row["page_bytes"]
        table.add_row(
            units.clean(key[1]),
            key[0].label,
            units.size(row["page_bytes"]),
            "*" if is_best else "",
            *numbers,
            style="bold" if is_best else None,
        )
    return table


def time_parts(result: PagingResult) -> Table:
    """The time of a reference at each page size, against the first one.

    With the largest memory of the study, and its first storage.
    """
    memory = max(row["memory_bytes"] for row in result.rows)
    storage = findings.storages(result)[0]
    chosen = [
        row for row in result.rows if (row["memory_bytes"], row["storage"]) == (memory, storage)
    ]
    table = Table(
        f"Time of a reference with {units.size(memory)} of memory, {units.clean(storage)}"
    )
    heads = paging_declared.ROWS.heads
    table.add_columns(heads("page_bytes", "total_ns"), justify="right", importance=KEY)
    table.add_columns(heads(*findings.PARTS, "resident_bytes"), justify="right")
    base = chosen[0]
    for row in chosen:
        difference = row["total_ns"] / base["total_ns"] - 1
        table.add_row(
            units.size(row["page_bytes"]),
            units.duration(row["total_ns"]) + (f" {difference:+.1%}" if row is not base else ""),
            *(f"{row[name]:.3f}" for name in findings.PARTS),
            units.size(row["resident_bytes"] or 0),
        )
    return table


def fits(result: PagingResult) -> Table:
    """The fitted models, with confidence intervals, quality and verdict."""
    machine = findings.of_first_machine(result)
    title = f"Fitted models{machine}, p: page size in {findings.page_unit(result.fits)}"
    table = Table(f"{title}; confidence intervals in brackets")
    table.add_column("rate", importance=KEY)
    table.add_column(paging_declared.ROWS.head("memory_bytes"), justify="right", importance=KEY)
    table.add_column("model and coefficients", overflow="fold", importance=KEY)
    table.add_columns(("R2", "RMSE", "leave-one-out"), justify="right")
    table.add_column("verdict", overflow="fold", importance=KEY)
    for fit in result.fits:
        lines = [units.clean(fit["formula"])]
        lines += [
            f"{units.clean(name)} = {findings.interval(coefficient)}"
            for name, coefficient in fit["coefficients"].items()
        ]
        verdict = fit["verdict"].upper() if fit["verdict"] == "bad" else units.clean(fit["verdict"])
        memory = findings.memory_of_fit(fit)
        table.add_row(
            findings.QUANTITIES[fit["quantity"]],
            "any" if memory is None else memory.label,
            Text("\n".join(lines)),
            *map(optional, (fit["r2"], fit["rmse"], fit["loo_error"])),
            Text.assemble(
                (verdict, _VERDICT_STYLE.get(fit["verdict"], "")),
                f": {units.clean(fit['reason'])}" if fit["reason"] else "",
            ),
        )
    return table


#: The meanings of the two measures of memory in :func:`info`.
_MEMORIES: Final = (
    "The footprint is every page touched; the peak resident set is the most in use at once, with "
    "the page cache."
)


def info(found: Content) -> RenderableType:
    """The summary of a trace: counts, threads, the hottest regions, working set and reuse."""
    parts: list[RenderableType] = [labelled(facts(found))]
    if found.get("peak_resident_bytes") is not None:
        parts += [Text(""), Text(_MEMORIES)]
    # Only the tasks of a virtual machine have names.
    if named := [thread for thread in found.get("threads") or () if thread.get("name")]:
        parts += [Text(""), _tasks(named)]
    if found.get("regions"):
        parts += [Text(""), _regions(found["regions"])]
    if found.get("hot"):
        parts += [Text(""), _hot(found["hot"])]
    if found.get("working_set"):
        parts += [Text(""), _working_set(found)]
        shifts = phases(found["working_set"])
        if 1 < len(shifts) <= MOST:
            parts += [Text(""), _phases(shifts)]
    if found.get("reuse"):
        parts += [Text(""), _reuse(found["reuse"])]
    return Group(*parts)


def labelled(pairs: Iterable[tuple[str, str]]) -> RenderableType:
    """Names and values in two columns."""
    grid = RichTable.grid(padding=(0, 2))
    for label, value in pairs:
        grid.add_row(Text(label, style="bold"), Prose(value, overflow="fold"))
    return grid


#: The maximum number of hot parts, and of tasks.
_HOT: Final = 8
#: Counts of a region that are shown.
RegionCount = Literal["records", "loads", "stores", "fetches", "pages"]
REGION_COUNTS: Final[tuple[RegionCount, ...]] = get_args(RegionCount)


def _tasks(tasks: Sequence[Thread]) -> Table:
    table = Table("Tasks of the virtual machine: names and process numbers")
    table.add_column("task", overflow="fold", narrow=16, importance=KEY)
    table.add_columns(("records", "instructions"), justify="right")
    for task in sorted(tasks, key=lambda task: -task["records"])[:_HOT]:
        numbers = (task["records"], task["instructions"])
        table.add_row(units.clean(task.get("name", "")), *map(units.count, numbers))
    return table


def _regions(regions: Sequence[info_declared.RegionsRow]) -> Table:
    table, head = Table("Hottest regions"), info_declared.REGIONS_ROWS.head
    table.add_column(head("name"), overflow="fold", narrow=28, importance=KEY)
    for name in REGION_COUNTS:
        detail = name in ("loads", "stores", "fetches")
        table.add_column(head(name), justify="right", importance=DETAIL if detail else 1)
    table.add_rows(cells(info_declared.REGIONS_ROWS, ("name", *REGION_COUNTS), regions))
    return table


def _hot(parts: Sequence[info_declared.HotRow]) -> Table:
    table = Table("Hot parts: pages with at least 8 times the data references of the average page")
    head = info_declared.HOT_ROWS.head
    table.add_column("addresses", overflow="fold", narrow=16, importance=KEY)
    table.add_column(head("name"), overflow="fold", narrow=12)
    table.add_column("size", justify="right")
    table.add_column(head("share"), justify="right")
    table.add_column(head("function"), overflow="fold", narrow=16)
    for part in parts[:_HOT]:
        low, high = part["addr_low"], part["addr_high"]
        function = part["function"] or ""
        if part["function_share"] is not None:
            function += f" ({units.percent(part['function_share'])})"
        table.add_row(
            f"{low:#x}-{high:#x}",
            units.clean(part["name"]),
            units.size(high - low),
            units.percent(part["share"]),
            units.clean(function),
        )
    return table


def _working_set(found: Content) -> Table:
    points = found["working_set"]
    resident = points[0]["resident_bytes"] is not None
    title = "Working set and resident set" if resident else "Working set"
    table = Table(
        f"{title}; working set: bytes touched by the last "
        f"{units.count(found['working_set_records'])} records"
    )
    columns = ("record", "bytes", "resident_bytes") if resident else ("record", "bytes")
    table.add_columns(info_declared.WORKING_SET_ROWS.heads(*columns), justify="right")
    # At most 12 rows; the last point is one of them.
    step = max(1, -(-len(points) // 12))
    last = len(points) - 1
    table.add_rows(cells(info_declared.WORKING_SET_ROWS, columns, points[last % step :: step]))
    return table


def _phases(found: Sequence[Phase]) -> Table:
    table = Table("Phases: where the size of the working set shifts")
    resident = found[0].resident_bytes is not None
    heads = ("part of the run", "working set", *(["most resident"] if resident else []))
    table.add_columns(heads, justify="right")
    for phase in found:
        table.add_row(
            f"{units.percent(phase.begin)} to {units.percent(phase.end)}",
            units.size(phase.working_bytes),
            *([units.size(phase.resident_bytes or 0)] if resident else []),
        )
    return table


def _reuse(bins: Sequence[info_declared.ReuseRow]) -> Table:
    total = float(sum(b["count"] for b in bins)) or 1.0
    table = Table("Reuse: distinct pages touched between two uses of a page")
    heads = (*info_declared.REUSE_ROWS.heads("distance_log2", "count"), "share")
    table.add_columns(heads, justify="right")
    for entry in bins:
        table.add_row(
            reuse_label(entry["distance_log2"]),
            units.count(entry["count"]),
            units.percent(entry["count"] / total),
        )
    return table


def reuse_label(exponent: int | None) -> str:
    """The range of distances of a bin: ``8 to 15``; ``first use`` for None or a negative one."""
    if exponent is None or exponent < 0:
        return "first use"
    if exponent == 0:
        return "1"
    return f"{units.count(2**exponent)} to {units.count(2 ** (exponent + 1) - 1)}"


def listing(
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[object]],
    details: Sequence[str] = (),
    paths: bool = False,
) -> Table:
    """A table of texts; columns of numbers are aligned to the right.

    If it is too wide, the last column takes more lines; then columns between the first and the last
    are left out, ``details`` first. With ``paths``, the last column names regions and files.
    """
    table = Table(title)
    for index, header in enumerate(headers):
        texts = [str(row[index]) for row in rows]
        # An empty text counts as a number: every string contains it.
        right = all(text[:1] in "+-0123456789" and text[:2] != "0x" for text in texts)
        last = index == len(headers) - 1
        table.add_column(
            header,
            justify="right" if right else "left",
            overflow="fold" if last and not right else "ellipsis",
            # Wide enough for "(anonymous)" and an address.
            narrow=24 if paths else 18,
            importance=KEY if last or not index else DETAIL if header in details else 1,
        )
    for row in rows:
        *texts, end = map(units.clean, row)
        table.add_row(*texts, PathText(end) if paths else end)
    return table


#: The number of rows that :func:`first_rows` shows.
FIRST: Final = 10


def first_rows(table: pyarrow.Table) -> Table:
    """The first rows of a table."""
    shown = Table()
    for index, name in enumerate(table.column_names):
        shown.add_column(name, importance=1 if index else KEY)
    for row in table.slice(0, FIRST).to_pylist():
        shown.add_row(*map(_cell, row.values()))
    return shown


def _cell(value: object) -> str:
    if value is None:
        return ""
    return units.digits(value, 6) if isinstance(value, float) else units.clean(value)


def show(renderable: RenderableType, stream: IO[str] | None = None) -> None:
    """Print to ``stream`` by the rules of this module; to a file, without trailing blanks."""
    target = sys.stdout if stream is None else stream
    printer = console(target)
    if target.isatty():
        printer.print(_fitted(renderable))
    else:
        target.write(_plain(printer, renderable))


def text(renderable: RenderableType, width: int, elsewhere: str) -> str:
    """The text that :func:`show` prints to a file.

    Args:
        renderable: the view of a result.
        width: in characters.
        elsewhere: where to find columns that are left out.
    """
    printer = console(io.StringIO(), width)
    # Tables read this attribute, as Rich passes them only the console.
    printer.elsewhere = elsewhere  # type: ignore[attr-defined]
    return _plain(printer, renderable)


def _plain(printer: Console, renderable: RenderableType) -> str:
    """ASCII text without trailing blanks."""
    with printer.capture() as captured:
        printer.print(_fitted(renderable))
    lines = units.ascii_frame(captured.get()).splitlines()
    return "".join(line.rstrip() + "\n" for line in lines)


def _fitted(renderable: RenderableType) -> RenderableType:
    """The renderable, with its texts as :class:`Prose`."""
    if isinstance(renderable, Group):
        return Group(*map(_fitted, renderable.renderables))
    return Prose.of(renderable) if isinstance(renderable, str | Text) else renderable


def _best_cell(best: findings.Best) -> Text:
    difference = change(best)
    return Text.assemble(
        (units.size(best.page_bytes), "bold"), f"  {difference}" if difference else ""
    )


def change(best: findings.Best) -> str:
    """The time of the best page against 4 KiB: ``-12 %``, ``same`` if that rounds to 0.0 %.

    Empty if 4 KiB was not simulated.
    """
    gain = best.gain
    if gain is None:
        return ""
    if best.page_bytes == findings.USUAL_PAGE or gain < 0.0005:
        return "same"
    return f"-{units.percent(gain)}"
