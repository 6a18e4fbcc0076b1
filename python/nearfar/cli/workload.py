"""``nearfar workload``: list, show and capture real programs doing real work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from nearfar.cli._study import Force, TextFormat, say
from nearfar.declared import workload as declared
from nearfar.errors import NearfarError
from nearfar.output import check_output
from nearfar.schema import takes

if TYPE_CHECKING:
    from nearfar.workload import Workload

GROUP = "Record"
APP = typer.Typer(
    no_args_is_help=True,
    help="List, show or capture workloads (docs/workload.md).",
    epilog="Example: nearfar workload capture sqlite redis -o captures",
)


_NAMES = typer.Argument(metavar="NAME...", help="Names or files of workloads.")


@APP.command("list", epilog="Example: nearfar workload list")
def list_(output_format: TextFormat = "table") -> None:
    """List the workloads, and whether their programs are installed here."""
    from nearfar import workload

    found = [workload.load(name) for name in workload.names()]
    if output_format == "json":
        rows = [{**one.to_dict(), "missing": one.missing()} for one in found]
        print(json.dumps({"workloads": rows}, indent=2))
    else:
        _print_list(found)


@APP.command(epilog="Example: nearfar workload show sqlite")
def show(names: Annotated[list[str], _NAMES], output_format: TextFormat = "table") -> None:
    """Show what workloads run, what they need and what they stand for."""
    from nearfar import workload

    found = [workload.load(name) for name in names]
    if output_format == "json":
        print(json.dumps({"workloads": [one.to_dict() for one in found]}, indent=2))
    else:
        for one in found:
            _print_one(one)


@APP.command(epilog="Example: nearfar workload capture sqlite redis -o captures")
@takes(declared.OPTIONS)
def capture(
    names: Annotated[list[str] | None, _NAMES] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Capture every workload that can run here.")
    ] = False,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", metavar="FOLDER", help="Folder for the traces, NAME.trace each."
        ),
    ] = Path(),
    force: Force = False,
    output_format: TextFormat = "table",
    **options: Unpack[declared.Options],
) -> None:
    """Capture workloads.

    With --all, workloads that cannot run here are left out, and listed at the end with an error.
    """
    from nearfar import workload

    if every and names:
        raise NearfarError("--all: contradicts the names; leave one of them out")
    if not names and not every:
        raise NearfarError("workload capture: give names from `nearfar workload list`, or --all")
    found = [workload.load(name) for name in (names or workload.names())]
    for one in found if names else []:
        vm = options.get("vm", False)
        one.check_there(vm)
        check_output(out / workload.trace_name(one.name, vm), force=force, holds="trace.json")
    rows: list[dict[str, str | float]] = []
    failed: list[NearfarError] = []
    for one in found:
        try:
            done = workload.capture(one, out, force=force, **options)
        except NearfarError as error:
            if not every:
                raise
            failed.append(error)
            continue
        rows.append(
            {"name": done.name, "trace": str(out / done.trace.name), "records": done.records,
             "pages": done.pages, "seconds": round(done.seconds, 1)}
        )  # fmt: skip
        if output_format == "table":
            print(
                f"{out / done.trace.name}: {done.records:,} records, {done.pages:,} pages of "
                f"4 KiB, {done.seconds:.0f} s",
                flush=True,
            )
    if output_format == "json":
        left_out = [str(error) for error in failed]
        print(json.dumps({"captured": rows, "left_out": left_out}, indent=2))
    if failed:
        for each in failed:
            say(str(each))
        what = f"workload capture --all: {len(failed)} of {len(found)} left out, as listed above"
        raise NearfarError(what, max(each.exit_code for each in failed))


def _print_list(found: list[Workload]) -> None:
    from nearfar.report import tables
    from nearfar.report.fitted import KEY, Table

    table = Table()
    table.add_column("workload", importance=KEY)
    table.add_column("papers")
    table.add_column("installed")
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
        "client": "\n".join(map(line, one.client)),
        "display": "its own (Xvfb)" if one.display else "",
        "environment": "\n".join(f"{key}={value}" for key, value in one.environment.items()),
        "full trace": "about {records:,} records, {pages:,} pages of 4 KiB, {seconds} s".format(
            **one.expected
        ),
        "small trace": "{max_refs:,} records, after the first {skip_refs:,}".format(**one.small),
    }
    tables.show(tables.labelled((label, value) for label, value in facts.items() if value))
