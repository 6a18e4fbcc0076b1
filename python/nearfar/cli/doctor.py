"""``nearfar doctor``: which capture methods and optional tools this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearfar.cli._study import TextFormat

if TYPE_CHECKING:
    from nearfar.doctor import Finding
    from nearfar.report.fitted import Table

GROUP = "Tools"
SETTINGS = {"epilog": "Example: nearfar doctor --require libvirt"}


def run(
    require: Annotated[
        list[str] | None,
        typer.Option(metavar="TOOL", help="Exit with 3 if this is not available; repeatable."),
    ] = None,
    output_format: TextFormat = "table",
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
    if output_format == "json":
        print(json.dumps({"findings": [one.to_dict() for one in found]}, indent=2))
    else:
        from nearfar.report.tables import show

        show(_table("What nearfar can use", [one for one in found if not one.for_tests]))
        tests = "What else nearfar's tests, checks and demonstration use"
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
    table.add_column("here", importance=KEY)
    table.add_column("used for; what was found, and the fix", overflow="fold", importance=KEY)
    for one in found:
        here = Text("yes", "green") if one.available else Text("no", "red")
        words = Text.assemble(one.used_for, (f"\n{one.why}", "dim"))
        if one.fix:
            words.append(f"\n{one.fix}", "bold")
        table.add_row(one.name, here, words)
    return table
