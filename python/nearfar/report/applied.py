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
from nearfar.report.fitted import KEY, Table

_BYTES = ("peak_rss_bytes", "anon_huge_bytes")


def report(result: ApplyResult) -> RenderableType:
    """The plan of a dry run; else the medians, and the prediction if there is one."""
    if not result.done:
        return Group(*(Text(line) for line in plan_lines(result)))
    plan = result.plan
    both = any(row["setting"] == "base" for row in result.rows)
    size = plan.setting or units.size(plan.page_bytes)
    runs = max(row["run"] for row in result.rows)
    text = (size if plan.setting else f"{size} pages") + (
        " against the machine as it is" if both else ""
    )
    parts: list[RenderableType] = [Text(f"{text}, {runs} run{'s' * (runs > 1)} each: medians")]
    parts.append(_summary(result.summary, size, both))
    if result.prediction:
        base = "base" if plan.setting else units.size(plan.base_bytes)
        parts += [_prediction(result.prediction, base, size)]
        for row in result.prediction:
            parts.append(Text(f"{_name(row['quantity'])}: {row['why']}"))
    if plan.changes:
        parts.append(Text("The switches of the machine are restored."))
    return Group(*parts)


def plan_lines(result: ApplyResult) -> list[str]:
    """The steps of the plan, one per line."""
    plan = result.plan
    lines = [f"{units.clean(shlex.join(result.command))}: would run with {_whose(plan)}"]
    lines += [f"  {c.file}: {c.was} -> {c.becomes}" for c in plan.changes]
    if plan.disable:
        lines.append("  for the command alone: PR_SET_THP_DISABLE (prctl); nothing else changes")
    elif not plan.changes:
        lines.append("  no switch needs changing")
    else:
        lines.append(
            "  for the whole machine while it runs: other programs get such pages too; "
            "put back after it"
        )
    return [*lines, "Nothing was changed or run; --yes does it."]


def _whose(plan: Plan) -> str:
    size = units.size(plan.page_bytes)
    if plan.setting is not None:
        return f"huge pages: {units.clean(plan.setting)}"
    return f"{size} pages only" if plan.disable else f"{size} pages where they fit"


def _summary(rows: Sequence[declared.SummaryRow], size: str, both: bool) -> Table:
    table = Table()
    table.add_column("measured", importance=KEY)
    for title in (
        (["base"] if both else [])
        + [size]
        + ([declared.SUMMARY_ROWS.head("ratio")] if both else [])
    ):
        table.add_column(title, justify="right")
    for row in rows:
        if row["page"] is None and row["base"] is None:
            continue
        quantity = row["quantity"]
        cells = [_value(quantity, row["base"])] if both else []
        cells.append(_value(quantity, row["page"]))
        table.add_row(_name(quantity), *cells, *([_ratio(row["ratio"])] if both else []))
    return table


def _prediction(rows: Sequence[declared.PredictionRow], base: str, size: str) -> Table:
    table = Table()
    table.add_column("predicted from the trace", importance=KEY)
    for title in (base, size, declared.PREDICTION_ROWS.head("ratio")):
        table.add_column(title, justify="right")
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
            _ratio(row["ratio"]),
            _name(row["measured"]) if row["measured"] else "-",
            _ratio(row["measured_ratio"]),
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


def _ratio(value: float | None) -> str:
    return "-" if value is None else units.digits(value)
