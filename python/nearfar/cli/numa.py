"""``nearfar numa``: DRAM, persistent memory and CXL as system memory."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from nearfar.cli._study import Force, Format, Html, check_format, keep, names, tell

APP = typer.Typer(
    no_args_is_help=True,
    help="Place memory on DRAM, persistent memory and CXL nodes: time, latency, bandwidth.",
    epilog="Example: nearfar numa alloc --size 80G,3000G --mode memory-mode,alius",
)

Machine = Annotated[str, typer.Option(help="Machine name or file.")]
Mode = Annotated[
    str | None,
    typer.Option(help="memory-mode, kmem-dax, alius, local, interleave, weighted-interleave, "
                 "preferred-many [default: all that the machine can be in]."),
]  # fmt: skip
Nodes = Annotated[str | None, typer.Option(help="Nodes to use, such as 0,4.")]
Weights = Annotated[
    str | None, typer.Option(help="A weight for each of --nodes [default: by bandwidth].")
]
From = Annotated[
    int | None, typer.Option("--from", help="Node whose cores work [default: the first].")
]
Threads = Annotated[int, typer.Option(min=1, max=65536, help="Cores at work.")]
Out = Annotated[
    Path | None, typer.Option("-o", "--out", help="Also write result.parquet and run.json.")
]
Seed = Annotated[int, typer.Option(help="Of whatever is drawn at random.")]


@APP.command(name="import", epilog="Example: nearfar numa import -o mine.toml")
def import_(
    sources: Annotated[
        list[Path] | None,
        typer.Argument(
            help="lstopo or virsh capabilities XML, daxctl or cxl JSON, numactl -H text, ACPI "
            "tables, a sysfs node folder [default: this machine's]."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write a machine file.")] = None,
    output_format: Annotated[str, typer.Option("--format", help="table, json or toml.")] = "table",
    force: Force = False,
) -> None:
    """Read memory nodes from this machine or from the output of its tools."""
    from dataclasses import asdict

    from nearfar import machine as machines
    from nearfar.errors import NearfarError
    from nearfar.numa import describe, to_machine
    from nearfar.output import write_whole
    from nearfar.report import numa as tables
    from nearfar.report.tables import show

    check_format(output_format, ("table", "json", "toml"))
    found = describe(list(sources or []))
    text, assumed = to_machine(found, "A machine" if sources else "This machine")
    if out is not None:
        if out.exists() and not force:
            raise NearfarError(f"{out}: exists already; choose another name or pass --force")
        write_whole(out, text)
        machines.load(str(out) if "/" in str(out) else f"./{out}")
    rows = [asdict(node) for node in found]
    if output_format == "json":
        print(json.dumps({"nodes": rows, "assumed": assumed}, indent=1))
    elif output_format == "toml":
        print(text, end="")
    else:
        show(tables.nodes(rows))
    for line in assumed if out is not None or output_format == "toml" else []:
        print(f"nearfar: note: assumed: {line}", file=sys.stderr)


@APP.command(
    epilog="Example: nearfar numa alloc --machine optane-4node --mode memory-mode,alius "
    "--size 80G,700G,3000G"
)
def alloc(
    size: Annotated[str, typer.Option(help="Bytes to allocate, such as 80G,700G.")],
    machine: Machine = "optane-4node",
    mode: Mode = None,
    allocator: Annotated[
        str, typer.Option(help="vmalloc (the kernel's) or user (a program).")
    ] = "vmalloc",
    nodes: Nodes = None,
    weights: Weights = None,
    origin: From = None,
    threads: Threads = 1,
    clean_cache: Annotated[
        bool, typer.Option("--clean-cache", help="Memory mode's cache holds no dirty lines.")
    ] = False,
    output_format: Format = "table",
    out: Out = None,
    html: Html = None,
    force: Force = False,
) -> None:
    """Time allocating and clearing memory; where pages land; why it cannot be done."""
    from nearfar import numa
    from nearfar.report import numa as tables

    check_format(output_format)
    found = numa.alloc(
        names(size) or [],
        machine=machine,
        modes=names(mode),
        allocator=allocator,
        nodes=_numbers(nodes, "--nodes"),
        weights=_numbers(weights, "--weights"),
        origin=origin,
        threads=threads,
        clean_cache=clean_cache,
    )

    keep(found, out, force, html, found.html)
    tell(found, output_format, lambda: tables.alloc(found.rows), html)


@APP.command(epilog="Example: nearfar numa run app.trace --mode local,memory-mode")
def run(
    load: Annotated[
        str, typer.Argument(help="Trace folder, workload, or a size: a stream over it.")
    ],
    machine: Machine = "optane-4node",
    mode: Mode = None,
    pattern: Annotated[str, typer.Option(help="Of a stream: random or sequential.")] = "random",
    writes: Annotated[float, typer.Option(help="Share of a stream's stores, 0 to 1.")] = 0.0,
    nodes: Nodes = None,
    weights: Weights = None,
    origin: From = None,
    threads: Threads = 1,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Pages lie at random in each node.")
    ] = False,
    seed: Seed = 1,
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
) -> None:
    """Show what a program sees: latency, bandwidth, near and far shares under each mode."""
    from nearfar import numa
    from nearfar.cli._progress import progress
    from nearfar.report import numa as tables

    check_format(output_format)
    with progress(f"numa run {load}") as pulse:
        found = numa.run(
            load,
            machine=machine,
            modes=names(mode),
            pattern=pattern,
            writes=writes,
            nodes=_numbers(nodes, "--nodes"),
            weights=_numbers(weights, "--weights"),
            origin=origin,
            threads=threads,
            shuffle=shuffle,
            seed=seed,
            progress=pulse,
        )
    keep(found, out, force)
    tell(found, output_format, lambda: tables.run(found.rows))


@APP.command(epilog="Example: nearfar numa pair 48G 48G --overlap 0,0.5,1")
def pair(
    first: Annotated[
        str, typer.Argument(help="Trace folder, workload, or a size loaded at random.")
    ],
    second: Annotated[str, typer.Argument(help="The other virtual machine.")],
    machine: Machine = "optane-4node",
    overlap: Annotated[
        str, typer.Option(help="Shares of the smaller one's places that both use.")
    ] = "0,0.25,0.5,0.75,1",
    cache: Annotated[
        str | None, typer.Option(help="DRAM in front of the node [default: the machine's].")
    ] = None,
    origin: From = None,
    seed: Seed = 1,
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
) -> None:
    """Show how two virtual machines in memory mode slow each other down."""
    from nearfar import numa
    from nearfar.cli._progress import progress
    from nearfar.errors import NearfarError
    from nearfar.report import numa as tables

    check_format(output_format)
    try:
        shares = [float(word) for word in names(overlap) or []]
    except ValueError:
        raise NearfarError(f"--overlap: {overlap[:40]!r}: write for example 0,0.5,1") from None
    with progress(f"numa pair {first} {second}") as pulse:
        found = numa.pair(
            first,
            second,
            machine=machine,
            overlap=shares,
            cache=cache,
            origin=origin,
            seed=seed,
            progress=pulse,
        )
    keep(found, out, force)
    tell(found, output_format, lambda: tables.pair(found.rows))


@APP.command(epilog="Example: nearfar numa plan --capacity 500G --threads 24 --emit numactl")
def plan(
    capacity: Annotated[str, typer.Option(help="What must fit, such as 500G.")],
    working_set: Annotated[
        str | None, typer.Option(help="In use at a time, touched first [default: all].")
    ] = None,
    bandwidth: Annotated[float, typer.Option(help="GB/s that are needed.")] = 0.0,
    machine: Machine = "optane-4node",
    pattern: Annotated[str, typer.Option(help="random or sequential.")] = "random",
    writes: Annotated[float, typer.Option(help="Share of stores, 0 to 1.")] = 0.0,
    origin: From = None,
    threads: Threads = 1,
    emit: Annotated[
        str | None,
        typer.Option(
            help="Print configuration: numactl, daxctl, weighted-interleave, "
            "numa-cmdline, numa-systemd."
        ),
    ] = None,
    output_format: Format = "table",
    out: Out = None,
    force: Force = False,
) -> int:
    """Choose a mode, nodes and weights; exit 1 if the bandwidth cannot be had."""
    from nearfar import emit as emitters
    from nearfar.numa.plan import plan as choose
    from nearfar.report import numa as tables

    check_format(output_format)
    if emit is not None:
        emitters.emitter(emit)
    found = choose(
        capacity,
        working_set=working_set,
        bandwidth=bandwidth,
        writes=writes,
        pattern=pattern,
        threads=threads,
        machine=machine,
        origin=origin,
    )
    best = next(row for row in found.rows if row["chosen"])
    text = None if emit is None else emitters.emit(emit, best)
    keep(found, out, force)
    if text is not None:
        print(text, end="")
    else:
        tell(found, output_format, lambda: tables.plan(found.rows))
    return 0 if best["enough"] else 1


def _numbers(text: str | None, flag: str) -> list[int]:
    from nearfar.errors import NearfarError

    words = names(text) or []
    if not all(word.isascii() and word.isdigit() and len(word) < 6 for word in words):
        raise NearfarError(f"{flag}: {str(text)[:40]!r}: write whole numbers such as 0,4")
    return [int(word) for word in words]
