"""The thp study as text: the answer, and tables of policies and areas (mappings)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import thp as declared
from nearfar.report import cells as texts
from nearfar.report.fitted import DETAIL, KEY, Prose, Table
from nearfar.report.tables import listing
from nearfar.thp import FREE_GROWTH_OF_AREA, HUGE, NO_HUGE, ThpResult, settings

#: The folder of the kernel's huge page settings.
SYSFS = "/sys/kernel/mm/transparent_hugepage"
#: Columns of the table of policies, after ``policy``.
_COLUMNS: Final = (
    "total_ns", "walk_ns", "start_ns", "io_ns", "mean_bytes", "peak_bytes", "huge_share",
    "swap_ins", "shrunk", "merges", "splits", "fallbacks", "stalls",
)  # fmt: skip
#: Columns that are shown only if memory is limited.
_LIMITED: Final = ("io_ns", "swap_ins", "shrunk")
#: The number of last columns that a narrow terminal leaves out first.
_DETAILS: Final = 4
#: Areas that save a smaller share of the time, and add little memory, are added up in one row.
_MIN_SHARE: Final = 0.001


def view(result: ThpResult) -> RenderableType:
    """The answer, what it is based on, and a row per policy."""
    table = Table("Time per reference (start: filling memory), and private memory")
    heads, rows = cells(result.rows)
    table.add_column(heads[0], importance=KEY)
    table.add_columns(heads[1:-_DETAILS], justify="right")
    table.add_columns(heads[-_DETAILS:], justify="right", importance=DETAIL)
    table.add_rows(rows)
    lines = Prose("\n".join(answer(result)), style="bold")
    parts: list[RenderableType] = [lines, Text(basis(result)), Text(""), table]
    if result.areas:
        parts += [Text(""), listing(AREAS, *area_cells(result), paths=True)]
        parts += [Text(""), Prose(advised(result))]
    return Group(*parts)


def cells(rows: Sequence[declared.Row]) -> tuple[list[str], list[list[str]]]:
    """The heads of the table, and the cells of each policy."""
    limited = rows[0].get("memory_bytes") is not None
    names = ["policy", *(name for name in _COLUMNS if limited or name not in _LIMITED)]
    return declared.ROWS.heads(*names), texts.cells(declared.ROWS, names, rows)


#: The title of the table of areas.
AREAS = "Areas: time that a policy saves in each once memory is filled, and memory that it adds"


def area_cells(result: ThpResult) -> tuple[list[str], list[list[str]]]:
    """Heads of the table of areas, and cells of each area under all policies but ``base``."""
    rows = []
    for policy in (row["policy"] for row in result.rows if row is not result.base):
        areas = [area for area in result.areas if area["policy"] == policy]
        areas.sort(key=lambda area: (-area["saved_ns"], -area["added_bytes"], area["area"]))
        shown = [area for area in areas if _matters(result, area)]
        rest = [area for area in areas if not _matters(result, area)]
        rows += shown
        if rest:
            noun = ("other" if shown else "area") + ("s" if len(rest) > 1 else "")
            total = rest[0].copy()
            total["advice"], total["area"] = "", f"{len(rest)} {noun}"
            for key in ("saved_ns", "saved_share", "mean_bytes", "added_bytes"):
                total[key] = sum(area[key] for area in rest)
            rows.append(total)
    names = ("policy", "saved_ns", "saved_share", "mean_bytes", "added_bytes", "advice", "area")
    return declared.AREAS_ROWS.heads(*names), texts.cells(declared.AREAS_ROWS, names, rows)


def _matters(result: ThpResult, area: declared.AreasRow) -> bool:
    added = abs(area["added_bytes"]) / max(result.base["mean_bytes"], 1.0)
    return abs(area["saved_share"]) >= _MIN_SHARE or added >= FREE_GROWTH_OF_AREA


def advised(result: ThpResult) -> str:
    """The advice to the kernel for the program or its areas (``madvise``, ``prctl``)."""
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


def basis(result: ThpResult) -> str:
    """What the answer is based on: the machine and its memory."""
    memory = "unlimited memory"
    if limit := result.rows[0].get("memory_bytes"):
        swap = result.run["options"]["storage"]
        memory = f"{units.size(limit)} of private memory, then swap on {swap}"
    return units.clean(f"Machine {result.run['machine']}; {memory}; files are in memory.")


def answer(result: ThpResult) -> Iterator[str]:
    """The best policy, how to set it, and the time to fill memory."""
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
