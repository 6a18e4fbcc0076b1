"""The terminal's view of a result as HTML for a notebook, with the chart as a picture."""

from __future__ import annotations

import base64
import html as markup
from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nearfar.report.html.page import vega_version
from nearfar.report.plots import Chart

#: The maximum number of rows of a table.
ROWS: Final = 20


def html(renderable: RenderableType, chart: Chart | None, more: str) -> str:
    """The terminal's view, the chart below it, and a last line.

    Args:
        renderable: the terminal's view.
        chart: the chart, if there is one.
        more: the last line.
    """
    parts = list(_parts(renderable))
    if chart is not None:
        parts.append(_picture(chart))
    return "\n".join([*parts, f"<p>{markup.escape(more)}</p>"])


def _parts(renderable: RenderableType) -> Iterator[str]:
    if isinstance(renderable, Group):
        for part in renderable.renderables:
            yield from _parts(part)
    elif isinstance(renderable, Table):
        yield _table(renderable)
    elif _text(renderable):
        bold = isinstance(renderable, Text) and "bold" in str(renderable.style)
        text = _text(renderable)
        yield f"<p><b>{text}</b></p>" if bold else f"<p>{text}</p>"


def _text(cell: object) -> str:
    return markup.escape(cell.plain if isinstance(cell, Text) else str(cell)).replace("\n", "<br>")


def _table(table: Table) -> str:
    columns = [list(map(_text, column.cells)) for column in table.columns]
    sides = [column.justify if column.justify == "right" else "left" for column in table.columns]

    def row(kind: str, cells: list[str]) -> str:
        styled = (
            f'<{kind} style="text-align:{side};white-space:pre-wrap">{cell}</{kind}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(styled)}</tr>"

    title = f"<caption>{_text(table.title)}</caption>" if table.title else ""
    head = [_text(column.header) for column in table.columns]
    heads = f"<thead>{row('th', head)}</thead>" if table.show_header else ""
    rows = [row("td", list(cells)) for cells in zip(*columns, strict=True)]
    more = f"<p>and {len(rows) - ROWS:,} more rows</p>" if len(rows) > ROWS else ""
    body = "".join(rows[:ROWS])
    table_html = f"<table>{title}{heads}<tbody>{body}</tbody></table>"
    return f'<div style="overflow-x:auto">{table_html}</div>{more}'


def _picture(chart: Chart) -> str:
    """The chart as SVG, which needs no script, so it works in a saved notebook."""
    import vl_convert

    drawn = vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=vega_version())
    data = base64.b64encode(drawn.encode()).decode()
    return f'<img style="max-width:100%" alt="chart" src="data:image/svg+xml;base64,{data}">'
