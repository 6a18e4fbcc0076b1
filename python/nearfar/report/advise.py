"""Text tables: advice with a row for each VM, and the evaluation of the model over many rows."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import paging_findings as findings
from nearfar import units
from nearfar.advise import AdviseResult
from nearfar.advise.host import hosts
from nearfar.advise.regret import Evaluation
from nearfar.declared import advise as declared
from nearfar.gain_error import points
from nearfar.report.cells import cells
from nearfar.report.explain import sizes
from nearfar.report.fitted import DETAIL, KEY, Table
from nearfar.sizes import bytes_of

#: Style of each level of confidence.
_STYLE = {"good": "green", "fair": "yellow", "poor": "bold red", "unknown": "yellow"}


def advice(result: AdviseResult) -> RenderableType:
    """A table, the reason for each VM, tables of regions, and a sentence for each host."""
    rows = result.rows
    options = result.run["options"]
    title = "Advised page size, predicted time per reference and gain over 4 KiB, simulated regret"
    nested = bytes_of(str(options.get("nested")))
    walks = [machine.get("tlb", {}).get("walk", {}) for machine in result.run["machines"].values()]
    if options.get("view") == "machine" and (nested or any("host_page" in walk for walk in walks)):
        given = f"{units.size(nested)} pages" if nested else "the pages of its machine file"
        title += f". For a virtual machine on a host that gives it {given} (--nested)"
    table = Table(title, collapse_padding=True)
    for head in declared.ROWS.heads("vm", "storage"):
        table.add_column(head, overflow="fold", narrow=10, importance=KEY)
    of_guests = any(row["guest_memory_bytes"] for row in rows)
    guest = ["guest_memory_bytes"] if of_guests else []
    last = ("settable_page_bytes", "predicted_ns", "gain", "regret")
    importance = {"advised_page_bytes": KEY, "gain": KEY, "predicted_ns": DETAIL}
    for name in ("memory_bytes", *guest, "advised_page_bytes", *last):
        head = declared.ROWS.head(name)
        table.add_column(head, justify="right", importance=importance.get(name, 1))
    table.add_column(confidence_head(rows))
    parts: list[RenderableType] = [table, Text("")]
    if findings.filtered(result.run):
        parts.insert(0, Text(units.clean(f"Of the {result.run['view']}.")))
    for row, last_cells in zip(rows, cells(declared.ROWS, last, rows), strict=True):
        table.add_row(
            units.clean(row["vm"]),
            units.clean(row["storage"]),
            memory(row),
            *([units.size(row["guest_memory_bytes"] or 0)] if of_guests else []),
            Text(units.size(row["advised_page_bytes"]), style="bold"),
            *last_cells,
            Text(confidence(row), style=_STYLE.get(confidence(row), "")),
        )
        parts.append(
            Text.assemble((units.clean(row["vm"]), "bold"), f": {units.clean(row['why'])}")
        )
    for row in rows:
        if row["regions"]:
            of = f" of {units.clean(row['vm'])}" if len(rows) > 1 else ""
            parts += [Text(""), *sizes(row["regions"], of)]
    for host in hosts(result.run, rows):
        style = "bold red" if host.missing_bytes else "bold"
        parts.append(
            Text.assemble((f"Host {units.clean(host.machine)}", style), f": {host.sentence}")
        )
    return Group(*parts)


def confidence_head(rows: Sequence[declared.Row]) -> str:
    """The head of the column of :func:`confidence`."""
    modelled = all(row["confidence"] is not None for row in rows)
    return declared.ROWS.head("confidence" if modelled else "gain_error")


def confidence(row: declared.Row) -> str:
    """The confidence in the model, or, for a simulated gain, its possible error."""
    return row["confidence"] or points(row["gain_error"] or 0)


def memory(row: declared.Row) -> str:
    """The memory size of a row, with its share of all memory if that is below 1."""
    size, fraction = units.size(row["memory_bytes"]), row["memory_fraction"]
    return size if fraction in (None, 1) else f"{size} ({units.percent(fraction)})"


def evaluation(found: Evaluation, limit: int = 10) -> RenderableType:
    """Regret by storage, and the worst rows.

    Columns: ``median``, ``p95``, ``worst``: regret of the model's page; ``exceed``: rows above the
    goal of the 95th percentile; ``papers``: rows predicted by the papers' formulas; ``advised``:
    95th percentile of the regret of the advised page.
    """
    goal = f"{units.percent(found['goal_median'])} / {units.percent(found['goal_p95'])}"
    table = Table(
        f"Regret of the model's page (goal: median / 95th percentile <= {goal})",
        collapse_padding=True,
    )
    table.add_column("storage", overflow="fold", min_width=14, importance=KEY)
    heads = ("rows", "median", "p95", "worst", "above goal", "papers' formulas", "advised p95")
    table.add_columns(heads, justify="right")
    table.add_column("goal", min_width=6)
    for group in found["summary"]:
        table.add_row(
            units.clean(group["group"]),
            units.count(group["rows"]),
            *(units.percent(group[key]) for key in ("median", "p95", "worst")),
            units.count(group["exceed"]),
            units.count(group["papers"]),
            units.percent(group["advised_p95"]),
            Text("holds") if group["holds"] else Text("MISSED", style="bold red"),
        )
    parts: list[RenderableType] = [table]
    if found["exceeding"]:
        title = f"Worst rows above {units.percent(found['goal_p95'])}"
        worst = Table(title, collapse_padding=True)
        worst.add_columns(("vm", "machine/storage"), overflow="fold", importance=KEY)
        worst.add_columns(("model's page", "best page", "regret"), justify="right")
        for row in found["exceeding"][:limit]:
            worst.add_row(
                units.clean(row["vm"]),
                units.clean(f"{row['machine']}/{row['storage']}"),
                units.size(row["model_page_bytes"]),
                units.size(row["best_page_bytes"]),
                units.percent(row["model_regret"]),
            )
        parts += [Text(""), worst]
    return Group(*parts)
