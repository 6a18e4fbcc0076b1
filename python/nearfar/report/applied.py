"""``nearfar apply`` as text: the plan of a dry run; the runs, their medians and the prediction."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.apply import ApplyResult
from nearfar.apply.setting import Plan
from nearfar.declared import apply as declared
from nearfar.report.cells import optional
from nearfar.report.fitted import KEY, Table

_BYTES = ("peak_rss_bytes", "anon_huge_bytes")


def report(result: ApplyResult) -> RenderableType:
    """The plan of a dry run; else the medians, and the prediction if there is one."""
    if not result.done:
        return Group(*(Text(line) for line in plan_lines(result)))
    plan = result.plan
    both = any(row["setting"] == "base" for row in result.rows)
    label = plan.setting or units.size(plan.page_bytes)
    runs = max(row["run"] for row in result.rows)
    text = label if plan.setting else f"{label} pages"
    text += " against the machine as it is" if both else ""
    parts: list[RenderableType] = [
        Text(f"{text}, {runs} run{'s' * (runs > 1)} each: medians"),
        _summary(result.summary, label, both),
    ]
    if result.prediction:
        base = "base" if plan.setting else units.size(plan.base_bytes)
        parts.append(_prediction(result.prediction, base, label))
        parts += [Text(f"{_name(row['quantity'])}: {row['why']}") for row in result.prediction]
    if plan.changes:
        parts.append(Text("The machine's huge page settings are restored."))
    return Group(*parts)


def plan_lines(result: ApplyResult) -> list[str]:
    """The steps of the plan, one per line."""
    plan = result.plan
    lines = [f"{units.clean(shlex.join(result.command))}: would run with {_pages(plan)}"]
    lines += [f"  {c.file}: {c.was} -> {c.becomes}" for c in plan.changes]
    if plan.disable:
        lines.append("  for the command alone: PR_SET_THP_DISABLE (prctl); nothing else changes")
    elif not plan.changes:
        lines.append("  no kernel setting needs changing")
    else:
        lines.append(
            "  for the whole machine while the command runs: other programs get such pages too; "
            "restored afterwards"
        )
    return [*lines, "Nothing was changed or run; --yes does it."]


def _pages(plan: Plan) -> str:
    """The huge page setting or page size of the command."""
    if plan.setting is not None:
        return f"huge pages: {units.clean(plan.setting)}"
    size = units.size(plan.page_bytes)
    return f"{size} pages only" if plan.disable else f"{size} pages where they fit"


def _summary(rows: Sequence[declared.SummaryRow], label: str, both: bool) -> Table:
    table = Table()
    table.add_column("measured", importance=KEY)
    titles = ["base", label, declared.SUMMARY_ROWS.head("ratio")] if both else [label]
    table.add_columns(titles, justify="right")
    for row in rows:
        if row["page"] is None and row["base"] is None:
            continue
        base, page = (_value(row["quantity"], value) for value in (row["base"], row["page"]))
        cells = [base, page, optional(row["ratio"])] if both else [page]
        table.add_row(_name(row["quantity"]), *cells)
    return table


def _prediction(rows: Sequence[declared.PredictionRow], base: str, label: str) -> Table:
    table = Table()
    table.add_column("predicted from the trace", importance=KEY)
    table.add_columns((base, label, declared.PREDICTION_ROWS.head("ratio")), justify="right")
    measured, ratio, comparable = declared.PREDICTION_ROWS.heads(
        "measured", "measured_ratio", "comparable"
    )
    table.add_column(measured)
    table.add_column(ratio, justify="right")
    table.add_column(comparable)
    for row in rows:
        table.add_row(
            _name(row["quantity"]),
            units.digits(row["base"]),
            units.digits(row["page"]),
            optional(row["ratio"]),
            _name(row["measured"]) if row["measured"] else "-",
            optional(row["measured_ratio"]),
            str(row["comparable"]),
        )
    return table


def _name(quantity: object) -> str:
    return str(quantity).replace("_bytes", "").replace("_", " ")


def _value(quantity: str, value: float | None) -> str:
    if value is None:
        return "-"
    if quantity in _BYTES:
        return units.size(value)
    return units.duration(value * 1e9) if quantity.endswith("seconds") else units.count(value)
