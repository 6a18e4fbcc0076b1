"""``nearfar numa``: DRAM, persistent memory and CXL as system memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import (
    Force,
    Format,
    Html,
    Out,
    TomlFormat,
    check_emitter,
    check_format,
    check_outputs,
    print_result,
    save,
    say_notes,
)
from nearfar.declared import numa_alloc, numa_pair, numa_plan, numa_run
from nearfar.schema import takes

GROUP = "Ask"
APP = typer.Typer(
    no_args_is_help=True,
    help="Simulate memory placement on DRAM, persistent memory and CXL: time, latency, bandwidth.",
    epilog="Example: nearfar numa alloc --size 80G,3000G --mode memory-mode,alius",
)


@APP.command(name="import", epilog="Example: nearfar numa import -o mine.toml")
def import_(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A sysfs node folder or ACPI tables [default: this machine's node folder]."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="Also write a machine file."),
    ] = None,
    output_format: TomlFormat = "table",
    force: Force = False,
) -> None:
    """Read memory nodes from this machine, a sysfs folder or ACPI tables."""
    from dataclasses import asdict

    from nearfar import machine as machines
    from nearfar.numa import describe, to_machine
    from nearfar.output import check_output, write_whole
    from nearfar.report import numa as tables
    from nearfar.report.tables import show

    if out is not None:
        check_output(out, force=force)
    found = describe(list(sources or []))
    text, assumed = to_machine(found, "A machine" if sources else "This machine")
    if out is not None:
        write_whole(out, text, force=force)
        # Check the file; a bare name may be a built-in machine.
        machines.load(str(out) if "/" in str(out) else f"./{out}")
    rows = [asdict(node) for node in found]
    if output_format == "json":
        print(json.dumps({"nodes": rows, "assumed": assumed}, indent=1))
    elif output_format == "toml":
        print(text, end="")
    else:
        show(tables.nodes(found))
    if out is not None or output_format == "toml":
        say_notes(f"assumed: {line}" for line in assumed)


@APP.command(
    epilog="Example: nearfar numa alloc --machine optane-4node --mode memory-mode,alius "
    "--size 80G,700G,3000G"
)
@takes(numa_alloc.OPTIONS)
def alloc(
    *,
    size: str,
    output_format: Format = "table",
    out: Out = None,
    html: Html = None,
    force: Force = False,
    **options: Unpack[numa_alloc.Options],
) -> None:
    """Simulate an allocation: time to allocate and clear, node of each page, cause of failure."""
    from nearfar import numa

    check_format(output_format)
    check_outputs(out, force, html)
    found = numa.alloc(size, **options)
    save(found, out, force, html)
    print_result(found, output_format, html)


@APP.command(epilog="Example: nearfar numa run app.trace --mode local,memory-mode")
@takes(numa_run.OPTIONS)
def run(
    load: Annotated[
        str,
        typer.Argument(
            help="Trace folder, workload, or a size: a sequential stream over that much memory."
        ),
    ],
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
    **options: Unpack[numa_run.Options],
) -> None:
    """Simulate a program's latency, bandwidth and share of accesses to far memory in each mode."""
    from nearfar import numa
    from nearfar.cli._progress import progress, records

    check_format(output_format)
    check_outputs(out, force)
    with progress(f"numa run {load}", records(load)) as on_progress:
        found = numa.run(load, progress=on_progress, **options)
    save(found, out, force)
    print_result(found, output_format)


@APP.command(epilog="Example: nearfar numa pair 48G 48G --overlap 0,0.5,1")
@takes(numa_pair.OPTIONS)
def pair(
    first: Annotated[
        str,
        typer.Argument(
            help="First virtual machine: a trace folder, a workload, or a size (random loads "
            "over it)."
        ),
    ],
    second: Annotated[
        str,
        typer.Argument(
            help="Second virtual machine: a trace folder, a workload, or a size (random loads "
            "over it)."
        ),
    ],
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
    **options: Unpack[numa_pair.Options],
) -> None:
    """Simulate how much two virtual machines in memory mode slow each other down."""
    from nearfar import numa
    from nearfar.cli._progress import progress

    check_format(output_format)
    check_outputs(out, force)
    with progress(f"numa pair {first} {second}") as on_progress:
        found = numa.pair(first, second, progress=on_progress, **options)
    save(found, out, force)
    print_result(found, output_format)


@APP.command(epilog="Example: nearfar numa plan --capacity 500G --threads 24 --emit numactl")
@takes(numa_plan.OPTIONS)
def plan(
    *,
    capacity: str,
    emit: Annotated[
        str | None,
        typer.Option(
            metavar="TOOL",
            help="Print configuration for a tool (docs/apply.md): daxctl, numa-systemd, numactl, "
            "weighted-interleave.",
        ),
    ] = None,
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
    **options: Unpack[numa_plan.Options],
) -> int:
    """Choose a placement mode, nodes and weights; exit code 1 if no mode has the bandwidth."""
    from nearfar import emit as emitters
    from nearfar.numa.plan import plan as choose

    check_format(output_format)
    check_outputs(out, force)
    if emit is not None:
        check_emitter("numa plan", emit)
    found = choose(capacity, **options)
    best = next(row for row in found.rows if row["chosen"])
    text = None if emit is None else emitters.emit(emit, best)
    save(found, out, force)
    if text is not None:
        print(text, end="")
    else:
        print_result(found, output_format)
    return 0 if best["enough"] else 1
