"""The cells of a sweep, made from its result alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar.report.tables import listing

#: Cells that are listed.
SHOWN: Final = 40


def sweep(found: Mapping[str, Any]) -> RenderableType:
    """How many cells are done, and each of them by what sets it off from the others."""
    run, cells = found["run"], found["cells"]
    states = Counter(cell["status"] for cell in cells)
    counted = ", ".join(f"{number} {status}" for status, number in states.items())
    head = f"{run['of']}: {len(cells)} cells, {counted}"
    names = [name for name, values in run["grid"].items() if len(values) > 1] or list(run["grid"])
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
    """A parameter as a file of a sweep has it."""
    return value if isinstance(value, str) else json.dumps(value)
