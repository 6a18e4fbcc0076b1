"""``nearfar doctor``: which capture paths and optional tools are there, and how to get the rest."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nearfar.doctor import Finding
    from nearfar.report.fitted import Table

#: Where `nearfar --help` lists it.
GROUP = "Tools"
SETTINGS = {"epilog": "Example: nearfar doctor --require libvirt"}


class Format(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


def run(
    require: Annotated[
        list[str] | None,
        typer.Option(help="Exit with 3 unless this is available; repeatable."),
    ] = None,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,  # noqa: A002
) -> None:
    """Show which capture methods and optional tools are available, and how to get the others."""
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
        from nearfar.report.tables import show

        show(_table("What nearfar can use", [one for one in found if not one.for_tests]))
        tests = "What its own tests, checks and demonstration use besides"
        show(_table(tests, [one for one in found if one.for_tests]))
    missing = [one for one in found if one.name in (require or []) and not one.available]
    if missing:
        lines = [f"{one.name}: {one.why}; {one.fix}" for one in missing]
        raise NearfarError(" | ".join(lines), 3)


def _table(title: str, found: list[Finding]) -> Table:
    from rich.text import Text

    from nearfar.report.fitted import KEY, Table

    table = Table(title)
    table.add_column("tool", importance=KEY)
    table.add_column("there", importance=KEY)
    table.add_column("used for; what was found, and the fix", overflow="fold", importance=KEY)
    for one in found:
        there = Text("yes", "green") if one.available else Text("no", "red")
        words = Text.assemble(one.used_for, (f"\n{one.why}", "dim"))
        if one.fix:
            words.append(f"\n{one.fix}", "bold")
        table.add_row(one.name, there, words)
    return table
