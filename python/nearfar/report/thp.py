"""Settings for huge pages as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import thp as declared
from nearfar.gain_error import gain_error
from nearfar.report.fitted import DETAIL, KEY, Prose, Table
from nearfar.thp import ThpResult, settings

#: The kernel's settings.
SYSFS = "/sys/kernel/mm/transparent_hugepage"
_COUNTS = ("merges", "splits", "fallbacks", "stalls")
_COLUMNS = ("total_ns", "walk_ns", "start_ns", "mean_bytes", "peak_bytes", "huge_share", *_COUNTS)


def view(result: ThpResult) -> RenderableType:
    """The answer, what it rests on, and a row per policy."""
    table = Table("Time per reference (start: filling memory), and private memory")
    names, rows = cells(result.rows)
    table.add_column(names[0], importance=KEY)
    for name in names[1 : -len(_COUNTS)]:
        table.add_column(name, justify="right")
    for name in names[-len(_COUNTS) :]:
        table.add_column(name, justify="right", importance=DETAIL)
    for row in rows:
        table.add_row(*row)
    said = Prose("\n".join(answer(result)), style="bold")
    return Group(said, Text(rests(result)), Text(""), table)


def cells(rows: Sequence[declared.Row]) -> tuple[list[str], list[list[str]]]:
    """The heads of the table, and the cells of each policy."""
    return [declared.ROWS.head(name) for name in ("policy", *_COLUMNS)], [
        [
            units.clean(row["policy"]),
            *map(units.duration, (row["total_ns"], row["walk_ns"], row["start_ns"])),
            units.size(round(row["mean_bytes"])),
            units.size(row["peak_bytes"]),
            units.percent(row["huge_share"]),
            *map(units.count, (row["merges"], row["splits"], row["fallbacks"], row["stalls"])),
        ]
        for row in rows
    ]


def rests(result: ThpResult) -> str:
    """What the answer rests on."""
    return units.clean(f"Machine {result.run['machine']}; unlimited memory; files are in memory.")


def answer(result: ThpResult) -> Iterator[str]:
    """Which policy, what it does to memory, and what faults take."""
    best, base = result.best, result.base
    name, of_base = units.clean(best["policy"]), units.clean(base["policy"])
    if best is base:
        yield f"Policy: {name}; {_why_not(result)}"
    else:
        yield (
            f"Policy: {name}; it takes {units.percent(result.gain(best))} less time than {of_base} "
            f"once memory is filled, with {_memory(result, best)}."
        )
        words = settings(best["policy"]).items()
        yield "Set: " + "; ".join(f"echo {word} > {SYSFS}/{file}" for file, word in words)
    fastest = min(result.rows, key=lambda row: row["start_ns"])
    if fastest is not base and base["start_ns"] > 0:
        saved = units.percent(1 - fastest["start_ns"] / base["start_ns"])
        yield (
            f"Filling memory: {saved} less time with {units.clean(fastest['policy'])}; its longest "
            f"fault takes {units.duration(fastest['longest_ns'])} ({of_base}: "
            f"{units.duration(base['longest_ns'])})."
        )


def _memory(result: ThpResult, row: declared.Row) -> str:
    more = result.growth(row)
    if more >= 1:
        return f"{units.digits(1 + more, 2)} times the memory"
    return f"{units.percent(abs(more))} {'more' if more >= 0 else 'less'} memory"


def _why_not(result: ThpResult) -> str:
    """Why no other policy is chosen."""
    others = [row for row in result.rows if row is not result.base]
    if not others:
        return "it is the only one."
    most = max(others, key=result.gain)
    gain = result.gain(most)
    if gain <= gain_error(gain):
        return "the time that others save is within the error of a prediction."
    return (
        f"{units.clean(most['policy'])} takes {units.percent(gain)} less time once memory is "
        f"filled, but {_memory(result, most)}."
    )
