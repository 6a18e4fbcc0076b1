"""``nearfar machine``: list, show and check machine descriptions, or measure this machine."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearfar.cli._shared import SET

if TYPE_CHECKING:
    from nearfar.machine import Machine

#: Where `nearfar --help` lists it.
GROUP = "Tools"
SETTINGS = {"epilog": "Example: nearfar machine show optane-ssd"}


class Action(StrEnum):
    """What to do."""

    LIST = "list"
    SHOW = "show"
    CHECK = "check"
    SCHEMA = "schema"
    MEASURE = "measure"


class Format(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    TOML = "toml"


#: Page sizes whose I/O times `show` prints, bytes.
SHOWN = [1 << power for power in (9, 12, 14, 16, 18, 21)]


def run(
    action: Annotated[
        Action, typer.Argument(help="list | show NAME | check FILE | schema | measure")
    ],
    target: Annotated[str | None, typer.Argument(help="Name or path of a machine.")] = None,
    format: Annotated[  # noqa: A002
        Format, typer.Option(help="How to print; toml: a file to start from.")
    ] = Format.TABLE,
    set_: SET = None,
    storage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="measure: also the device that holds this file or folder, or this block device.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="measure: a few seconds, rough values.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="measure: write to this file; otherwise it is saved as `here`, the default "
            "machine of studies.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
) -> None:
    """List, show or check machine descriptions, print their JSON Schema, or measure this machine.

    measure writes a machine file of the machine it runs on, in about a minute. As root it measures
    faults of every page size that the kernel can set, and restores the kernel's settings.
    """
    import json

    from nearfar import machine
    from nearfar.errors import NearfarError

    if action is Action.MEASURE:
        if target is not None or set_ or format is Format.JSON:
            raise NearfarError("machine measure: takes no name, --set or --format json; drop it")
        _measure(storage or [], quick=quick, out=out, force=force)
        return
    measuring = {"--storage": storage, "--quick": quick, "--out": out, "--force": force}
    for flag in (flag for flag, value in measuring.items() if value):
        raise NearfarError(f"machine {action}: takes no {flag}; drop it, or use machine measure")

    as_json = format is Format.JSON
    if format is Format.TOML and action is not Action.SHOW:
        raise NearfarError(f"machine {action}: prints no TOML; use machine show NAME --format toml")
    if set_ and action in (Action.LIST, Action.SCHEMA):
        raise NearfarError(f"machine {action}: takes no --set; drop it")
    if action in (Action.LIST, Action.SCHEMA) and target is not None:
        raise NearfarError(f"machine {action}: takes no name; drop `{target}`")
    if action is Action.SCHEMA:
        print(json.dumps(machine.schema(), indent=2))
        return
    if action is Action.LIST:
        found = [machine.load(name) for name in machine.names()]
        if as_json:
            rows = [
                {"name": m.name, "description": m.description, "storage": m.storages} for m in found
            ]
            print(json.dumps({"machines": rows}, indent=2))
        else:
            _print_list(found)
        return
    if target is None:
        what = "a machine file" if action is Action.CHECK else "a name; see `nearfar machine list`"
        raise NearfarError(f"machine {action}: which machine? give {what}")
    one = machine.load(target, set=machine.parse_set(set_ or []))
    if action is Action.CHECK:
        if as_json:
            print(json.dumps({"name": one.name, "ok": True}))
        else:
            print(f"{target}: good")
    elif as_json:
        print(json.dumps(_as_json(one), indent=2))
    elif format is Format.TOML:
        print(one.to_toml(), end="")
    else:
        _print_machine(one)


def _measure(storage: list[str], *, quick: bool, out: Path | None, force: bool) -> None:
    import sys

    from nearfar import machine
    from nearfar.errors import NearfarError
    from nearfar.measure import measure
    from nearfar.output import check_output, watched, write_whole

    if out is not None:
        check_output(out, force=force)
    elif quick:
        raise NearfarError(
            "machine measure --quick: rough values are not kept; give -o FILE, or leave it out"
        )

    def say(what: str) -> None:
        if watched():
            print(f"nearfar: measuring {what}", file=sys.stderr)

    found = measure(storage_paths=storage, quick=quick, say=say)
    for note in found.notes:
        print(f"nearfar: {note}", file=sys.stderr)
    if out is not None:
        write_whole(out, found.text, force=force)
        return
    kept = machine.measured_file()
    kept.parent.mkdir(parents=True, exist_ok=True)
    # What was measured before is of the same machine, and older.
    write_whole(kept, found.text, force=True)
    print(
        f"{kept}: this machine; studies that name none take it (--machine {machine.HERE})",
        file=sys.stderr,
    )


def _as_json(one: Machine) -> Mapping[str, object]:
    """Give the description, plus the I/O times it leads to."""
    times = [
        {"storage": name, "page_bytes": size, "read_ns": read, "write_ns": write}
        for name in one.storages
        for size, read, write in zip(
            SHOWN, one.io_ns(name, SHOWN), one.write_ns(name, SHOWN), strict=True
        )
    ]
    return {"name": one.name, **one.to_dict(), "io": times}


def _print_list(found: list[Machine]) -> None:
    from nearfar.report.fitted import KEY, Table
    from nearfar.report.tables import show

    table = Table()
    table.add_column("machine", importance=KEY)
    table.add_column("storage", overflow="fold", importance=KEY)
    table.add_column("what it stands for", overflow="fold", importance=KEY)
    for one in found:
        table.add_row(one.name, ", ".join(one.storages), one.description)
    show(table)


def _print_machine(one: Machine) -> None:
    from rich.text import Text

    from nearfar.report.fitted import KEY, Table
    from nearfar.report.tables import show

    show(Text.assemble((one.name, "bold"), f": {one.description}"))
    table = Table()
    table.add_column("key", importance=KEY)
    for heading, style in (("value", "bold"), ("source", "dim")):
        table.add_column(heading, style=style, overflow="fold", importance=KEY)
    for key, value, source in _flatten("", one.to_dict()):
        table.add_row(key, value, source)
    show(table)
    if one.storages:
        show("Time to read one page (the device idle, the request alone):")
        table = Table()
        table.add_column("storage", importance=KEY)
        for size in SHOWN:
            table.add_column(_size(size), justify="right")
        for name in one.storages:
            table.add_row(name, *(_time(ns) for ns in one.io_ns(name, SHOWN)))
        show(table)


def _flatten(prefix: str, section: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    rows = []
    for key, value in section.items():
        path = f"{prefix}{key}"
        if not isinstance(value, dict):
            if path != "description":
                rows.append((path, str(value), ""))
        elif value.keys() == {"value", "source"}:
            rows.append((path, str(value["value"]), str(value["source"])))
        else:
            rows.extend(_flatten(f"{path}.", value))
    return rows


def _size(size: int) -> str:
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def _time(ns: float) -> str:
    for unit, name in ((1e6, "ms"), (1e3, "us")):
        if ns >= unit:
            return f"{ns / unit:.3g} {name}"
    return f"{ns:.3g} ns"
