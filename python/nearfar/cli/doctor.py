"""``nearfar doctor``: which capture paths and optional tools are there, and how to get the rest."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

SETTINGS = {"epilog": "Example: nearfar doctor --require libvirt"}


class Format(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


def run(
    require: Annotated[
        list[str] | None,
        typer.Option(help="Exit with 3 unless this is there; may be given several times."),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,  # noqa: A002
) -> None:
    """Say for each capture path and optional tool: there or not, why, and the exact fix."""
    import json

    from nearfar.doctor import examine
    from nearfar.errors import NearfarError

    found = examine()
    names = [one.name for one in found]
    for name in require or []:
        if name not in names:
            raise NearfarError(f"--require {name}: no such tool; one of {', '.join(names)}")
    if format is Format.JSON:
        print(json.dumps({"findings": [one.to_dict() for one in found]}, indent=2))
    else:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        from nearfar.report.tables import show

        table = Table(box=box.SIMPLE_HEAD)
        table.add_column("tool", no_wrap=True)
        table.add_column("there", no_wrap=True)
        table.add_column("why, and the fix", overflow="fold", ratio=3)
        table.add_column("used for", overflow="fold", ratio=2)
        for one in found:
            there = Text("yes", "green") if one.available else Text("no", "red")
            why = Text(one.why)
            if one.fix:
                why.append(f"\n{one.fix}", "bold")
            table.add_row(one.name, there, why, Text(one.used_for))
        show(table)
    missing = [one for one in found if one.name in (require or []) and not one.available]
    if missing:
        lines = [f"{one.name}: {one.why}; {one.fix}" for one in missing]
        raise NearfarError(" | ".join(lines), 3)
