"""Tables of the ``ssd`` study, made from its result alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import ssd as declared
from nearfar.report.fitted import KEY, Table
from nearfar.sizes import parse_time

#: What a core does, in seconds.
CPU: Final = ("cpu_busy", "cpu_stall", "cpu_switch", "cpu_idle")


def core_seconds(row: Mapping[str, Any]) -> float:
    """Seconds of all cores together."""
    return float(sum(row[part] for part in CPU))


def threshold_ns(epf: str) -> int:
    """The least predicted time that a policy passes on, nanoseconds; 0 where it has none."""
    _, colon, threshold = epf.partition(":")
    return parse_time(threshold, "--epf") if colon else 0


def headline(result: Mapping[str, Any]) -> str:
    """The quickest policy at each size of DRAM, a sentence each."""
    sentences = []
    for rows in by_size(result):
        best = min(rows, key=lambda row: float(row["seconds"]))
        first = rows[0]
        time = units.duration(float(best["seconds"]) * 1e9)
        if len(rows) > 1 and all(row["seconds"] == best["seconds"] for row in rows):
            sentences.append(f"At {units.size(best['dram_bytes'])} all take {time}.")
            continue
        change = "" if best is first else f", {_change(best['seconds'], first['seconds'])} "
        beside = "" if best is first else f"against {units.clean(first['epf'])}"
        size = units.size(best["dram_bytes"])
        sentences.append(
            f"At {size} {units.clean(best['epf'])} is quickest, {time}{change}{beside}."
        )
    return " ".join(sentences)


def ssd(result: Mapping[str, Any]) -> RenderableType:
    """The finding; times and faults; what the flash did, and what it took longer than predicted."""
    parts: list[RenderableType] = [Text(headline(result), style="bold")]
    for part in (_times(result), _flash(result), _late(result), Text(_state(result))):
        parts += [Text(""), part]
    return Group(*parts)


def _times(result: Mapping[str, Any]) -> Table:
    title = "Time by DRAM and policy; embedded page faults (EPF) an access, share passed on"
    table = Table(title, collapse_padding=True)
    heads = declared.ROWS.heads
    _columns(table, *heads("dram_bytes", "epf", "seconds"), "change", *heads(*CPU),
             *heads("embedded_fault_rate", "passed_share"))  # fmt: skip
    for rows in by_size(result):
        first = float(rows[0]["seconds"])
        least = min(float(row["seconds"]) for row in rows)
        for row in rows:
            seconds = float(row["seconds"])
            cores = core_seconds(row) or 1.0
            table.add_row(
                units.size(row["dram_bytes"]),
                units.clean(row["epf"]),
                units.duration(seconds * 1e9),
                "" if row is rows[0] else _change(seconds, first),
                *(units.percent(row[share] / cores) for share in CPU),
                units.rate(row["embedded_fault_rate"]),
                units.percent(row["passed_share"]),
                style="bold" if seconds == least else None,
            )
        table.add_section()
    return table


def _flash(result: Mapping[str, Any]) -> Table:
    title = "The device: mean time of a service, predicted and actual; commands"
    table = Table(title, collapse_padding=True)
    known = ("dram_bytes", "epf", "predicted_us_mean", "actual_us_mean", "flash_reads",
             "flash_programs", "gc_collections", "gc_moved", "write_amplification")  # fmt: skip
    _columns(table, *declared.ROWS.heads(*known))
    for rows in by_size(result):
        for row in rows:
            table.add_row(
                units.size(row["dram_bytes"]),
                units.clean(row["epf"]),
                units.duration(row["predicted_us_mean"] * 1e3),
                units.duration(row["actual_us_mean"] * 1e3),
                units.count(row["flash_reads"]),
                units.count(row["flash_programs"]),
                units.count(row["gc_collections"]),
                units.count(row["gc_moved"]),
                units.digits(row["write_amplification"]),
            )
        table.add_section()
    return table


def _late(result: Mapping[str, Any]) -> Table:
    title = "Services later than predicted, and the causes, summed; sleepers that woke too early"
    table = Table(title, collapse_padding=True)
    known = ("dram_bytes", "epf", "from_flash", "late_services", "late_die", "late_channel",
             "late_erase", "overruns")  # fmt: skip
    _columns(table, *declared.ROWS.heads(*known))
    for rows in by_size(result):
        for row in rows:
            table.add_row(
                units.size(row["dram_bytes"]),
                units.clean(row["epf"]),
                units.count(row["from_flash"]),
                units.count(row["late_services"]),
                units.duration(row["late_die"] * 1e9),
                units.duration(row["late_channel"] * 1e9),
                units.duration(row["late_erase"] * 1e9),
                units.count(row["overruns"]),
            )
        table.add_section()
    return table


def _columns(table: Table, *heads: str) -> None:
    """Add columns: numbers, and in the second a policy."""
    for place, head in enumerate(heads):
        table.add_column(
            head,
            justify="left" if place == 1 else "right",
            importance=KEY if place < 3 else 1,
        )


def _state(result: Mapping[str, Any]) -> str:
    state = result["details"][0]["conditioned"]
    writes = state["sequential_writes"] + state["random_writes"] + state["further_writes"]
    return (
        f"Flash at the start: {units.count(state['mapped_pages'])} pages hold data after "
        f"{units.count(writes)} writes ({units.count(state['further_writes'])} more than asked "
        f"for), {units.count(state['collections'])} collections, at least "
        f"{state['least_free_blocks']} free blocks a plane; collection is "
        f"{'due' if state['collecting'] else 'not due'} in every plane."
    )


def by_size(result: Mapping[str, Any]) -> list[list[declared.Row]]:
    """The rows of each size of DRAM."""
    groups: dict[int, list[declared.Row]] = {}
    for row in result["rows"]:
        groups.setdefault(row["dram_bytes"], []).append(row)
    return list(groups.values())


def _change(seconds: float, first: float) -> str:
    change = seconds / first - 1
    return f"{'+' if change >= 0 else '-'}{units.percent(abs(change))}"
