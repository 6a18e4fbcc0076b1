"""Tables of docs/validation.md from the record of the bench case `guest-pages`."""

from __future__ import annotations

import statistics
from typing import Any

from cases.guest_pages import (
    ADVICE,
    NAME,
    as_good,
    best,
    chosen,
    lost,
    settings,
    taken,
)
from measure import interval
from table import recorded

from nearfar.apply.setting import short


def advice() -> str:
    """The page sizes that were advised and the best, a line for each workload and memory size."""
    views = " | ".join(f"`--view {view}` advises | longer than best" for view in ADVICE)
    lines = [
        f"| workload | memory | | best | as good | {views} | 4 KiB: longer than best |",
        "|---|---:|---:|---|---|" + "---|---:|" * len(ADVICE) + "---:|",
    ]
    for group in settings(recorded(NAME)["cells"]):
        words = [f"`{group[0]['workload']}`", f"{group[0]['part']:.0%}"]
        words.append(f"{group[0]['limit_bytes'] / 2**20:.1f} MiB")
        words.append(short(best(group)["page_bytes"]))
        words.append(", ".join(short(cell["page_bytes"]) for cell in as_good(group)))
        for view in ADVICE:
            cell = chosen(group, view)
            words += [short(cell["page_bytes"]), _lost(group, cell)]
        lines.append(f"| {' | '.join([*words, _lost(group, group[0])])} |")
    return "\n".join(lines) + "\n"


def _lost(group: list[dict[str, Any]], cell: dict[str, Any]) -> str:
    return f"{lost(group, cell):.0f} %" if cell["laps"] else _ended(cell)


def _ended(cell: dict[str, Any]) -> str:
    """Why boots of a cell ended early; empty if none did.

    A cell is not reached if all boots ended at larger memory.
    """
    if not cell["laps"] and not cell["ended"]:
        return "not reached"
    counts = {why: cell["ended"].count(why) for why in dict.fromkeys(cell["ended"])}
    return ", ".join(f"{count} x {why}" for why, count in counts.items())


def every_cell() -> str:
    """Processor time, faults and swap-ins of the laps of each cell."""
    lines = [
        "| workload | memory | page | processor seconds per lap | in the kernel | major faults | "
        "MiB read back | in one piece | huge pages | laps | boots that ended early |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for group in settings(recorded(NAME)["cells"]):
        for cell in group:
            words = [f"`{cell['workload']}`", f"{cell['part']:.0%}", short(cell["page_bytes"])]
            lines.append(f"| {' | '.join([*words, *_counted(cell)])} |")
    return "\n".join(lines) + "\n"


def _counted(cell: dict[str, Any]) -> list[str]:
    laps = cell["laps"]
    if not laps:
        return ["", "", "", "", "", "", "0", _ended(cell)]

    def middle(name: str) -> float:
        return statistics.median(lap[name] for lap in laps)

    low, high = interval(taken(cell))
    read = middle("read_pages")
    whole = middle("swpin") * cell["page_bytes"] / 4096
    # Medians may come from different laps, so that the part may exceed the whole.
    in_one_piece = f"{min(1.0, whole / read):.0%}" if read and cell["page_bytes"] > 4096 else ""
    huge_pages = statistics.median(cell["obtained"])
    return [
        f"{statistics.median(taken(cell)):.2f} ({low:.2f} to {high:.2f})",
        f"{middle('system_seconds'):.2f}",
        f"{middle('major'):,.0f}",
        f"{read / 256:,.0f}",  # MiB
        in_one_piece,
        f"{huge_pages:,.0f}" if huge_pages else "",
        str(len(laps)),
        _ended(cell),
    ]


#: Tables of docs/validation.md, by name.
TABLES = {"advice": advice, "cells": every_cell}
