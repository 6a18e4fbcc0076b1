"""The cells of a sweep as a text table."""

from __future__ import annotations

import json
from collections import Counter
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar.report.tables import listing
from nearfar.sweep import SweepResult

#: The maximum number of listed cells.
SHOWN: Final = 40


def sweep(result: SweepResult) -> RenderableType:
    """How many cells are done, and each cell by the parameters that vary."""
    run, cells = result.run, result.cells
    states = Counter(cell["status"] for cell in cells)
    counted = ", ".join(f"{number} {status}" for status, number in states.items())
    head = f"{run['of']}: {len(cells)} cells, {counted}"
    names = result.varying or list(run["grid"])
    rows = [
        [*(word(cell["parameters"].get(name)) for name in names), cell["status"], cell["rows"]]
        for cell in cells[:SHOWN]
    ]
    parts: list[RenderableType] = [
        Text(head, style="bold"),
        Text(""),
        listing("Cells", [*names, "status", "rows"], rows),
    ]
    if len(cells) > SHOWN:
        parts.append(Text(f"and {len(cells) - SHOWN} more cells"))
    return Group(*parts)


def word(value: object) -> str:
    """A parameter as in the file of a sweep."""
    return value if isinstance(value, str) else json.dumps(value)
