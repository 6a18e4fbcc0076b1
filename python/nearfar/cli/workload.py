"""``nearfar workload``: list, show and capture real programs doing real work."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from nearfar.declared import workload as declared
from nearfar.schema import takes

if TYPE_CHECKING:
    from nearfar.workload import Workload

#: Where `nearfar --help` lists it.
GROUP = "Record"
SETTINGS = {"epilog": "Example: nearfar workload capture sqlite redis -o captures"}


class Action(StrEnum):
    """What to do."""

    LIST = "list"
    SHOW = "show"
    CAPTURE = "capture"


class Format(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


@takes(declared.OPTIONS)
def run(
    action: Annotated[Action, typer.Argument(help="list | show NAME | capture NAME...")],
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names or paths of workloads.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Capture every workload.")] = False,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="Folder for the traces, NAME.trace each.")
    ] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace existing traces.")] = False,
    format: Annotated[Format, typer.Option(help="How to print.")] = Format.TABLE,  # noqa: A002
    **options: Unpack[declared.Options],
) -> None:
    """List, show or capture workloads (docs/workload.md).

    With --all, what is missing here is left out and listed at the end (exit code 3).
    """
    import json

    from nearfar import workload
    from nearfar.errors import NearfarError

    chosen = list(targets or [])
    as_json = format is Format.JSON
    if every and (chosen or action is not Action.CAPTURE):
        raise NearfarError("--all: goes with `capture` and no names; leave one of them out")
    if action is Action.LIST:
        if chosen:
            raise NearfarError(f"workload list: takes no name; drop `{chosen[0]}`")
        found = [workload.load(name) for name in workload.names()]
        if as_json:
            rows = [{**one.to_dict(), "missing": one.missing()} for one in found]
            print(json.dumps({"workloads": rows}, indent=2))
        else:
            _print_list(found)
        return
    if not chosen and not every:
        raise NearfarError(f"workload {action}: which one? `nearfar workload list` names them")
    found = [workload.load(name) for name in (workload.names() if every else chosen)]
    if action is Action.SHOW:
        if as_json:
            print(json.dumps({"workloads": [one.to_dict() for one in found]}, indent=2))
        else:
            for one in found:
                _print_one(one)
        return
    _capture(found, every, out, force, as_json, options)


def _capture(
    found: list[Workload],
    every: bool,
    out: Path,
    force: bool,
    as_json: bool,
    options: declared.Options,
) -> None:
    import json
    import sys

    from nearfar import workload
    from nearfar.errors import NearfarError

    rows: list[dict[str, str | float]] = []
    failed: list[NearfarError] = []
    for one in found:
        try:
            made = workload.capture(one, out, force=force, **options)
        except NearfarError as error:
            if not every:
                raise
            failed.append(error)
            continue
        rows.append(
            {"name": made.name, "trace": str(out / made.trace.name), "records": made.records,
             "pages": made.pages, "seconds": round(made.seconds, 1)}
        )  # fmt: skip
        if not as_json:
            print(
                f"{out / made.trace.name}: {made.records:,} records, {made.pages:,} pages of "
                f"4 KiB, {made.seconds:.0f} s",
                flush=True,
            )
    if as_json:
        left_out = [str(error) for error in failed]
        print(json.dumps({"captured": rows, "left_out": left_out}, indent=2))
    if failed:
        for each in failed:
            print(f"nearfar: {each}", file=sys.stderr)
        what = f"workload capture --all: {len(failed)} of {len(found)} left out, as said above"
        raise NearfarError(what, max(each.exit_code for each in failed))


def _print_list(found: list[Workload]) -> None:
    from nearfar.report import tables
    from nearfar.report.fitted import KEY, Table

    table = Table()
    table.add_column("workload", importance=KEY)
    table.add_column("papers")
    table.add_column("here")
    table.add_column("M records", justify="right")
    table.add_column("MiB", justify="right")
    table.add_column("what it does", overflow="fold", narrow=28, importance=KEY)
    for one in found:
        here = "no" if one.missing() else "yes"
        records, pages = one.expected["records"] / 1e6, one.expected["pages"] / 256
        table.add_row(
            one.name, " ".join(one.papers), here, f"{records:.0f}", f"{pages:.0f}",
            one.description,
        )  # fmt: skip
    tables.show(table)


def _print_one(one: Workload) -> None:
    import shlex

    from nearfar.report import tables

    def line(words: list[str]) -> str:
        return " ".join(word if word == "<" else shlex.quote(word) for word in words)

    gone = one.missing()
    facts = {
        "workload": one.name,
        "does": one.description,
        "stands for": one.stands_for,
        "differs": one.differs,
        "papers": " ".join(one.papers),
        "packages": " ".join(one.packages),
        "missing": f"{', '.join(gone)}; apt-get install {' '.join(one.packages)}" if gone else "",
        "files": "\n".join(
            f"{name}: {made.get('make', 'text of the workload file')}"
            for name, made in one.files.items()
        ),
        "before": "\n".join(map(line, one.prepare)),
        "runs": line(one.command) + (f" < {one.stdin}" if one.stdin else ""),
        "beside it": "\n".join(map(line, one.client)),
        "display": "its own (Xvfb)" if one.display else "",
        "environment": "\n".join(f"{key}={value}" for key, value in one.environment.items()),
        "whole": "about {records:,} records, {pages:,} pages of 4 KiB, {seconds} s".format(
            **one.expected
        ),
        "small": "after {skip_refs:,} records, {max_refs:,} records".format(**one.small),
    }
    tables.show(tables.labelled((label, value) for label, value in facts.items() if value))
