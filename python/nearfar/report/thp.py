"""Settings for huge pages as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, cast

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import thp as declared
from nearfar.report.fitted import DETAIL, KEY, Prose, Table
from nearfar.report.tables import listing
from nearfar.thp import FREE_GROWTH_OF_AREA, HUGE, NO_HUGE, ThpResult, settings

#: The kernel's settings.
SYSFS = "/sys/kernel/mm/transparent_hugepage"
#: Columns, and how each is written; some are only for limited memory.
_COLUMNS: Final[Mapping[str, Callable[[float], str]]] = {
    "total_ns": units.duration,
    "walk_ns": units.duration,
    "start_ns": units.duration,
    "io_ns": units.duration,
    "mean_bytes": units.size,
    "peak_bytes": units.size,
    "huge_share": units.percent,
    "swap_ins": units.count,
    "shrunk": units.count,
    "merges": units.count,
    "splits": units.count,
    "fallbacks": units.count,
    "stalls": units.count,
}
_LIMITED: Final = ("io_ns", "swap_ins", "shrunk")
#: Columns that a narrow terminal leaves out.
_COUNTS: Final = 4
#: Areas with a smaller share of the time and of memory are summed up.
_SHOWN: Final = 0.001


def view(result: ThpResult) -> RenderableType:
    """The answer, what it rests on, and a row per policy."""
    table = Table("Time per reference (start: filling memory), and private memory")
    names, rows = cells(result.rows)
    table.add_column(names[0], importance=KEY)
    for name in names[1:-_COUNTS]:
        table.add_column(name, justify="right")
    for name in names[-_COUNTS:]:
        table.add_column(name, justify="right", importance=DETAIL)
    for row in rows:
        table.add_row(*row)
    said = Prose("\n".join(answer(result)), style="bold")
    parts: list[RenderableType] = [said, Text(rests(result)), Text(""), table]
    if result.areas:
        parts += [Text(""), listing(AREAS, *area_cells(result), places=True)]
        parts += [Text(""), Prose(advised(result))]
    return Group(*parts)


def cells(rows: Sequence[declared.Row]) -> tuple[list[str], list[list[str]]]:
    """The heads of the table, and the cells of each policy."""
    limited = rows[0].get("memory_bytes") is not None
    names = [name for name in _COLUMNS if limited or name not in _LIMITED]
    return declared.ROWS.heads("policy", *names), [
        [
            units.clean(row["policy"]),
            *(_COLUMNS[name](cast("Mapping[str, float]", row)[name]) for name in names),
        ]
        for row in rows
    ]


#: The title of the table of areas.
AREAS = "Areas: time that they save once memory is filled, and memory that they add"


def area_cells(result: ThpResult) -> tuple[list[str], list[list[str]]]:
    """The heads of the table of areas, and the cells of each area under each other policy."""
    heads = declared.AREAS_ROWS.heads(
        "policy", "saved_ns", "saved_share", "mean_bytes", "added_bytes", "advice", "area"
    )
    cells = []
    for policy in (row["policy"] for row in result.rows if row is not result.base):
        areas = [area for area in result.areas if area["policy"] == policy]
        areas.sort(key=lambda area: (-area["saved_ns"], -area["added_bytes"], area["area"]))
        shown = [area for area in areas if _matters(result, area)]
        rest = [area for area in areas if not _matters(result, area)]
        cells += [_line([area], area["advice"], area["area"]) for area in shown]
        if rest:
            noun = ("other" if shown else "area") + ("s" if len(rest) > 1 else "")
            cells.append(_line(rest, "", f"{len(rest)} {noun}"))
    return heads, cells


def _line(areas: Sequence[declared.AreasRow], advice: str, name: str) -> list[str]:
    """The cells of areas under a policy, added up."""
    return [
        areas[0]["policy"],
        units.duration(sum(area["saved_ns"] for area in areas)),
        units.percent(sum(area["saved_share"] for area in areas)),
        units.size(sum(area["mean_bytes"] for area in areas)),
        units.size(sum(area["added_bytes"] for area in areas)),
        advice,
        name,
    ]


def _matters(result: ThpResult, area: declared.AreasRow) -> bool:
    added = abs(area["added_bytes"]) / max(result.base["mean_bytes"], 1.0)
    return abs(area["saved_share"]) >= _SHOWN or added >= FREE_GROWTH_OF_AREA


def advised(result: ThpResult) -> str:
    """What to advise the kernel, for the program or for its areas."""
    gain = {area["area"] for area in result.areas if area["advice"] == HUGE}
    grow = {area["area"] for area in result.areas if area["advice"] == NO_HUGE} - gain
    if not gain and grow:
        return (
            "No area gains, and huge pages add memory: on a host that has them everywhere, start "
            "the program with prctl(PR_SET_THP_DISABLE)."
        )
    if not gain:
        return "No area gains, and none adds memory: nothing to advise."
    return (
        f"madvise({HUGE}) for areas that gain ({len(gain)}), with `madvise` on the host; on a host "
        f"with `always`, madvise({NO_HUGE}) for those that only add memory ({len(grow)})."
    )


def rests(result: ThpResult) -> str:
    """What the answer rests on."""
    limit, asked = result.rows[0].get("memory_bytes"), result.run["options"]
    memory = "unlimited memory"
    if limit:
        memory = f"{units.size(limit)} of private memory, then swap on {asked['storage']}"
    return units.clean(f"Machine {result.run['machine']}; {memory}; files are in memory.")


def answer(result: ThpResult) -> Iterator[str]:
    """Which policy, what it does to memory, and what faults take."""
    best, base = result.best, result.base
    of_base = units.clean(base["policy"])
    yield f"Policy: {units.clean(result.sentence)}."
    if best is not base:
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
