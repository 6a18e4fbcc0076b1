"""Tables of the ``ssd`` study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import ssd as declared
from nearfar.report.cells import cells, signed_percent
from nearfar.report.fitted import KEY, Table
from nearfar.sizes import parse_time
from nearfar.ssd import SsdResult

#: Embedded page faults (EPF: the device loads the page from its flash into its DRAM) matter if they
#: take more than this share of the cores' time.
_MATTERS: Final = 0.01
#: Columns with the parts of the cores' time, in seconds.
Cpu = Literal["cpu_busy", "cpu_stall", "cpu_switch", "cpu_idle"]
CPU: Final[tuple[Cpu, ...]] = get_args(Cpu)


def core_seconds(row: declared.Row) -> float:
    """Seconds of all cores together."""
    return sum(row[part] for part in CPU)


def shares(row: declared.Row) -> list[str]:
    """Each part of the time of the cores, as a share."""
    total = core_seconds(row) or 1.0
    return [units.percent(row[part] / total) for part in CPU]


def threshold_ns(epf: str) -> int:
    """The predicted time, ns, from which a policy uses ordinary page faults; 0 for no threshold.

    A policy with a threshold is written ``smart:50us``.
    """
    _, colon, threshold = epf.partition(":")
    return parse_time(threshold, "--epf") if colon else 0


def headline(result: SsdResult) -> str:
    """The quickest policy at each size of DRAM, one sentence for each size."""
    sentences = []
    for rows in by_size(result.rows):
        best = min(rows, key=lambda row: row["seconds"])
        first = rows[0]
        time = units.duration(best["seconds"] * 1e9)
        if len(rows) > 1 and all(row["seconds"] == best["seconds"] for row in rows):
            sentences.append(f"At {units.size(best['dram_bytes'])} all policies take {time}.")
            continue
        text = f"At {units.size(best['dram_bytes'])} {units.clean(best['epf'])} is quickest, {time}"
        if best is not first:
            change = signed_percent(best["seconds"] / first["seconds"] - 1)
            text += f", {change} against {units.clean(first['epf'])}"
        sentences.append(f"{text}.")
    return " ".join(sentences)


def ssd(result: SsdResult) -> RenderableType:
    """The answer; times and faults; flash commands; causes of transfers later than predicted.

    Only the answer if embedded page faults do not matter.
    """
    if not any(_matter(row) for row in result.rows):
        return Text(f"{_without_faults(result)} {headline(result)}", style="bold")
    parts: list[RenderableType] = [Text(headline(result), style="bold")]
    groups = by_size(result.rows)
    tables = (_times(groups), _listing(*_FLASH, groups), _listing(*_LATE, groups))
    for part in (*tables, Text(_state(result))):
        parts += [Text(""), part]
    return Group(*parts)


def _matter(row: declared.Row) -> bool:
    spent = row["embedded_faults"] * row["actual_us_mean"] / 1e6
    return spent > _MATTERS * core_seconds(row)


def _without_faults(result: SsdResult) -> str:
    most = max(row["embedded_faults"] for row in result.rows)
    if not most:
        return "Embedded page faults do not matter: the program fits the device's DRAM."
    return (
        f"Embedded page faults do not matter: at most {units.count(most)}, less than "
        f"{units.percent(_MATTERS)} of the time."
    )


def _times(groups: Sequence[Sequence[declared.Row]]) -> Table:
    title = (
        "Time by DRAM and policy; embedded page faults (EPF) per access, share passed to the kernel"
    )
    table = Table(title, collapse_padding=True)
    before, after = ("dram_bytes", "epf", "seconds"), ("embedded_fault_rate", "passed_share")
    heads = declared.ROWS.heads
    _columns(table, *heads(*before), "change", *heads(*CPU), *heads(*after))
    for rows in groups:
        first, best = rows[0]["seconds"], min(row["seconds"] for row in rows)
        left, right = (cells(declared.ROWS, names, rows) for names in (before, after))
        for row, begin, end in zip(rows, left, right, strict=True):
            table.add_row(
                *begin,
                "" if row is rows[0] else signed_percent(row["seconds"] / first - 1),
                *shares(row),
                *end,
                style="bold" if row["seconds"] == best else None,
            )
        table.add_section()
    return table


#: Titles and columns of the other tables.
_FLASH: Final = (
    "The device: mean service time of an embedded page fault, predicted and actual; flash commands",
    ("dram_bytes", "epf", "predicted_us_mean", "actual_us_mean", "flash_reads", "flash_programs",
     "gc_collections", "gc_moved", "write_amplification"),
)  # fmt: skip
_LATE: Final = (
    "Transfers later than predicted, total delay by cause; threads woken before their page arrived",
    ("dram_bytes", "epf", "from_flash", "late_services", "late_die", "late_channel", "late_erase",
     "overruns"),
)  # fmt: skip


def _listing(title: str, names: Sequence[str], groups: Sequence[Sequence[declared.Row]]) -> Table:
    table = Table(title, collapse_padding=True)
    _columns(table, *declared.ROWS.heads(*names))
    for rows in groups:
        table.add_rows(cells(declared.ROWS, names, rows))
        table.add_section()
    return table


def _columns(table: Table, *heads: str) -> None:
    """Add columns: DRAM size, policy, and numbers."""
    size, policy, first, *others = heads
    table.add_column(size, justify="right", importance=KEY)
    table.add_column(policy, importance=KEY)
    table.add_column(first, justify="right", importance=KEY)
    table.add_columns(others, justify="right")


def _state(result: SsdResult) -> str:
    state = result.details[0]["conditioned"]
    if state is None:
        return "Flash at the start: unknown."
    writes = state["sequential_writes"] + state["random_writes"] + state["further_writes"]
    return (
        f"Flash at the start: {units.count(state['mapped_pages'])} pages hold data after "
        f"{units.count(writes)} writes ({units.count(state['further_writes'])} of them to make "
        f"collection due), {units.count(state['collections'])} collections, at least "
        f"{state['least_free_blocks']} free blocks per plane; garbage collection is "
        f"{'due in every plane' if state['collecting'] else 'not yet due in some plane'}."
    )


def by_size(rows: Sequence[declared.Row]) -> list[list[declared.Row]]:
    """The rows of each size of DRAM."""
    groups: dict[int, list[declared.Row]] = {}
    for row in rows:
        groups.setdefault(row["dram_bytes"], []).append(row)
    return list(groups.values())
