"""The page size that `nearfar fit` chooses from rates at four sizes, against the best of seven.

TLB miss and fault rates simulated from captures stand in for hardware counters.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from inputs import Inputs
from measure import Row, capture, row
from programs import PROGRAMS
from table import figures, recorded

from cases.mglru_guest import ENVIRONMENT
from nearfar import units
from nearfar.advise.measured import decide
from nearfar.advise.prediction import Costs, Point
from nearfar.fit import fit_csv
from nearfar.machine import load
from nearfar.paging import paging
from nearfar.workload import bundled

NAME = "fit-choice"
SUMMARY = "the page size chosen from rates at four sizes, against the best of seven"

#: Page sizes whose rates the choice sees, and all page sizes.
MEASURED = (1024, 4096, 16384, 65536)
SIZES = tuple(1024 << power for power in range(7))
MEMORY = "50%"
#: Storages to choose for: machine and storage.
STORAGES = (
    ("desktop-nvm", "nvm-1x"), ("desktop-nvm", "nvm-10x"), ("desktop-nvm", "nvm-100x"),
    ("optane-ssd", "optane-ssd"), ("nvme", "nvme"), ("zram", "zram"), ("desktop-hdd", "hdd"),
)  # fmt: skip
#: Programs of `bench/programs` to add, and the scale of their input.
CAPTURED, PART = ("sort", "perl"), 0.1
#: Bundled captures left out: they only have page numbers.
LEFT_OUT = ("pigz-pages", "pigz-45-pages")
QUICK = ("gnugo", "redis")


def run_case(inputs: Inputs, rounds: int, quick: bool) -> list[Row]:
    """Judge the choice for bundled views and captures, and for captures of :data:`CAPTURED`."""
    views, captures = bundled("views"), bundled()
    traces = {path.stem: path for path in sorted(captures.glob("*.trace"))}
    traces |= {path.stem: path for path in views.glob("*.trace")}
    traces = {
        name: path
        for name, path in traces.items()
        if name not in LEFT_OUT and (not quick or name in QUICK)
    }
    for program in [] if quick or not inputs.can_capture else PROGRAMS:
        if program.name in CAPTURED and not program.missing():
            command = program.make(inputs.scratch, PART)
            traces[program.name] = inputs.scratch / f"{program.name}.trace"
            capture(command, traces[program.name], ENVIRONMENT)
    cells: list[dict[str, Any]] = []
    for name, trace in traces.items():
        cells += choices(name, trace, inputs.scratch / f"{name}.csv")
    inputs.cells += cells
    return rows(cells)


def choices(name: str, trace: Path, table: Path) -> list[dict[str, Any]]:
    """A cell for each storage. ``table``: where to write the rates for `nearfar fit`."""
    # Only rates are used, which are the same for every storage.
    found = paging(
        trace, machine="desktop-nvm", storage=["nvm-1x"], page_sizes=SIZES, memory=MEMORY,
        view="paper", lifetimes="off",
    )  # fmt: skip
    known = {one["page_bytes"]: one for one in found.rows}
    with table.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["page_bytes", "tlb_miss_rate", "fault_rate"])
        for size in MEASURED:
            if size in known:
                rates = known[size]
                lines.writerow([size, rates["tlb_miss_rate"], rates["fault_rate"]])
    fits = fit_csv(table)
    # The papers' view has no second-level TLB; the number of pages is not needed for times.
    points = [
        Point(size, one["tlb_miss_rate"], second=0.0, faults=one["fault_rate"], pages=0.0)
        for size, one in sorted(known.items())
    ]
    cells = []
    for machine, storage in STORAGES:
        made = decide(fits, machine, storage)
        costs = Costs.of(load(machine), storage, [point.page_bytes for point in points])
        # Times of address translation and of data, added.
        true = dict(zip(sorted(known), np.add(*costs.exact(points)).tolist(), strict=True))
        cells.append({"program": name, "storage": storage, **judged(made.rows, true)})
    return cells


def judged(rows: Sequence[Mapping[str, Any]], true: Mapping[int, float]) -> dict[str, Any]:
    """Chosen and best size, time lost by the choice and by 4 KiB (shares of the best time), and the
    largest error of a predicted time at an unseen size."""
    chosen = next(one for one in rows if one["chosen"])
    considered = [size for size in true if size <= max(one["page_bytes"] for one in rows)]
    best = min(considered, key=lambda size: true[size])
    unseen = [one for one in rows if not one["measured"]]
    errors = [abs(one["time_ns"] / true[one["page_bytes"]] - 1) for one in unseen]
    # The stated error is the same at every unseen size.
    said = next((one["error"] for one in unseen), None)
    return {
        "chosen_bytes": chosen["page_bytes"],
        "best_bytes": best,
        "lost": true[chosen["page_bytes"]] / true[best] - 1,
        "usual_lost": true[4096] / true[best] - 1,
        "error": max(errors, default=0.0),
        "said_error": said,
    }


def rows(cells: Sequence[Mapping[str, Any]]) -> list[Row]:
    """How often choices are good, the time that they lose, and how often errors are as stated."""
    if not cells:
        return []
    lost = [100 * cell["lost"] for cell in cells]
    usual = [100 * cell["usual_lost"] for cell in cells]
    within = [cell for cell in cells if cell["said_error"] is not None]
    covered = 100 * sum(one["error"] <= one["said_error"] for one in within) / max(len(within), 1)
    return [
        row(NAME, "choices within 5 % of the best time", [share(lost)], "%", goal=">= 90"),
        row(NAME, "4 KiB within 5 % of the best time", [share(usual)], "%"),
        row(NAME, "most time lost by a choice", [max(lost)], "%"),
        row(NAME, "most time lost by 4 KiB", [max(usual)], "%"),
        row(NAME, "unseen times within the error that is said", [covered], "%"),
    ]


def share(lost: Sequence[float]) -> float:
    """Percent of the losses (in percent) that are at most 5."""
    return 100 * sum(one <= 5 for one in lost) / len(lost)


def programs() -> str:
    """The choice for each program on each storage."""
    cells = recorded(NAME)["cells"]
    storages = list(dict.fromkeys(cell["storage"] for cell in cells))
    lines = [f"| program | {' | '.join(storages)} |", "|---|" + "---|" * len(storages)]
    for name in dict.fromkeys(cell["program"] for cell in cells):
        own = {cell["storage"]: cell for cell in cells if cell["program"] == name}
        lines.append(f"| `{name}` | {' | '.join(_cell(own[one]) for one in storages)} |")
    return "\n".join(lines) + "\n"


def _cell(cell: Mapping[str, Any]) -> str:
    """The chosen size, ``16K``; if another is best, that size and the time lost: (32K, 2 %)."""
    chosen, best = (units.size(cell[key]) for key in ("chosen_bytes", "best_bytes"))
    return chosen if chosen == best else f"{chosen} ({best}, {units.percent(cell['lost'])})"


TABLES = {"figures": figures(NAME), "programs": programs}
