"""``nearfar machine``: list, show and check machine descriptions, or measure this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearfar.cli._shared import SET
from nearfar.cli._study import Force, TextFormat, TomlFormat, say
from nearfar.errors import NearfarError

if TYPE_CHECKING:
    from nearfar.machine import Machine

GROUP = "Tools"
APP = typer.Typer(
    no_args_is_help=True,
    help="List, show or check machine descriptions, or measure this machine.",
    epilog="Example: nearfar machine show optane-ssd",
)
#: Page sizes whose I/O times `show` prints, bytes.
SHOWN = [1 << power for power in (9, 12, 14, 16, 18, 21)]

Named = Annotated[str, typer.Argument(help="Name or file of a machine.")]


@APP.command("list", epilog="Example: nearfar machine list")
def list_(output_format: TextFormat = "table") -> None:
    """List the built-in machines."""
    from nearfar import machine

    found = [machine.load(name) for name in machine.names()]
    if output_format == "json":
        rows = [
            {"name": m.name, "description": m.description, "storage": m.storages} for m in found
        ]
        print(json.dumps({"machines": rows}, indent=2))
    else:
        _print_list(found)


@APP.command(epilog="Example: nearfar machine show optane-ssd")
def show(name: Named, set_: SET = None, output_format: TomlFormat = "table") -> None:
    """Show a machine's values, their sources and I/O times; --format toml prints its file."""
    from nearfar import machine

    found = machine.load(name, set=machine.parse_set(set_ or []))
    if output_format == "json":
        print(json.dumps(_as_json(found), indent=2))
    elif output_format == "toml":
        print(found.to_toml(), end="")
    else:
        _print_machine(found)


@APP.command(epilog="Example: nearfar machine check mine.toml")
def check(name: Named, set_: SET = None, output_format: TextFormat = "table") -> None:
    """Check a machine file."""
    from nearfar import machine

    found = machine.load(name, set=machine.parse_set(set_ or []))
    if output_format == "json":
        print(json.dumps({"name": found.name, "ok": True}))
    else:
        print(f"{name}: good")


@APP.command(epilog="Example: nearfar machine schema")
def schema() -> None:
    """Print the JSON Schema of machine files."""
    from nearfar import machine

    print(json.dumps(machine.schema(), indent=2))


@APP.command(epilog="Example: nearfar machine measure")
def measure(
    storage: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Also measure this block device, or the device of this file or folder.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Rough values in a few seconds; needs -o.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="Machine file to write [default: `here`, the default machine of studies].",
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Measure this machine and write its machine file, in 15 to 60 seconds.

    As root, it measures faults of every page size that the kernel can set, and restores the
    kernel's settings.
    """
    from nearfar import machine
    from nearfar.measure import measure
    from nearfar.output import check_output, shows_progress, write_whole

    if out is None and quick:
        raise NearfarError("machine measure --quick: rough values need -o FILE; give it")
    # `here` always describes this machine, so a new measurement replaces it.
    path, force = (machine.measured_file(), True) if out is None else (out, force)
    if out is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    check_output(path, force=force)

    def on_progress(what: str) -> None:
        if shows_progress():
            say(f"measuring {what}")

    found = measure(storage_paths=storage or [], quick=quick, say=on_progress)
    for note in found.notes:
        say(note)
    write_whole(path, found.text, force=force)
    if out is None:
        print(
            f"{path}: this machine, from now on the default of studies (--machine {machine.HERE})",
            file=sys.stderr,
        )


def _as_json(one: Machine) -> Mapping[str, object]:
    """The description and its I/O times."""
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
    table.add_column("description", overflow="fold", importance=KEY)
    for one in found:
        table.add_row(one.name, ", ".join(one.storages), one.description)
    show(table)


def _print_machine(one: Machine) -> None:
    from rich.text import Text

    from nearfar import units
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
        show("Time to read one page from an idle device:")
        table = Table()
        table.add_column("storage", importance=KEY)
        for size in SHOWN:
            table.add_column(units.size(size), justify="right")
        for name in one.storages:
            table.add_row(name, *(units.duration(ns) for ns in one.io_ns(name, SHOWN)))
        show(table)


def _flatten(prefix: str, section: Mapping[str, object]) -> list[tuple[str, str, str]]:
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
