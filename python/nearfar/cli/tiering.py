"""``nearfar tiering``: policies that move pages between fast and slow memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nearfar.cli._study import Force, Format, Html, check_format, keep, tell

SETTINGS = {"epilog": "Example: nearfar tiering --policy nomad,ssp --mix write --seeds 8"}


def run(
    trace: Annotated[
        str | None, typer.Argument(help="Trace folder, in place of a generated workload.")
    ] = None,
    workload: Annotated[
        str, typer.Option(help="nomad-small, nomad-medium, nomad-large or pointer-chase.")
    ] = "nomad-medium",
    policy: Annotated[
        str, typer.Option(help="Names of --list, with commas between, or all.")
    ] = "all",
    machine: Annotated[str, typer.Option(help="Machine name or file.")] = "cxl-a",
    mix: Annotated[
        str, typer.Option(help="read, write, mixed (by operation) or split (by page).")
    ] = "write",
    pattern: Annotated[str, typer.Option(help="scrambled-zipf or zipf.")] = "scrambled-zipf",
    placement: Annotated[
        str, typer.Option(help="Hot pages first in memory (hottest-first) or scattered (uniform).")
    ] = "uniform",
    rounds: Annotated[
        int | None, typer.Option(help="After the warm-up [default: 4; replays of a trace: 1].")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Of memory and work: 1/64, 1/1 for full size.")
    ] = "1/64",
    seeds: Annotated[int, typer.Option(min=1, max=10_000, help="How many runs.")] = 1,
    seed: Annotated[int, typer.Option(min=0, max=2**63, help="The first run's seed.")] = 1,
    fast: Annotated[
        str | None, typer.Option(help="Fast node: 30% of the program's memory, or bytes.")
    ] = None,
    slow: Annotated[str | None, typer.Option(help="Slow node: the same.")] = None,
    rss: Annotated[str | None, typer.Option(help="Memory a generated workload maps.")] = None,
    wss: Annotated[str | None, typer.Option(help="The part of it that is used.")] = None,
    huge: Annotated[bool, typer.Option("--huge", help="Map memory as 2 MiB pages.")] = False,
    knob: Annotated[
        list[str] | None, typer.Option(help="policy.knob=value; may be repeated.")
    ] = None,
    knobs: Annotated[
        Path | None, typer.Option(help="TOML file of [policy] tables of knobs.")
    ] = None,
    cost_scale: Annotated[
        float, typer.Option(help="All costs of kernel primitives times this.")
    ] = 1.0,
    filter: Annotated[  # noqa: A002
        str, typer.Option(help="Of a trace: cache, cache-write-backs or none.")
    ] = "cache",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: one a core.")] = 0,
    list_policies: Annotated[
        bool, typer.Option("--list", help="List policies and their knobs.")
    ] = False,
    output_format: Format = "table",
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Also write result.parquet, series.parquet, run.json."),
    ] = None,
    html: Html = None,
    force: Force = False,
) -> None:
    """Compare tiering policies on a simulated machine: bandwidth, migrations, shadows, faults."""
    from nearfar.cli._progress import progress
    from nearfar.errors import NearfarError
    from nearfar.report import tables
    from nearfar.report import tiering as texts
    from nearfar.tiering import policies, read_knobs, tiering

    check_format(output_format)
    if list_policies:
        found = policies()
        if output_format == "json":
            import json

            print(json.dumps(found, indent=1))
        else:
            tables.show(texts.policies(found))
        return
    values = {} if knobs is None else read_knobs(knobs)
    for item in knob or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise NearfarError(
                f"--knob: {item!r} has no value; write for example tpp.demote_scale=200"
            )
        values[key.strip()] = value.strip()
    with progress("tiering") as pulse:
        result = tiering(
            workload if trace is None else Path(trace),
            policy=policy,
            machine=machine,
            mix=mix,
            pattern=pattern,
            placement=placement,
            rounds=rounds,
            scale=scale,
            seeds=range(seed, seed + seeds),
            fast=fast,
            slow=slow,
            rss=rss,
            wss=wss,
            huge=huge,
            knobs=values,
            cost_scale=cost_scale,
            filter=filter,
            threads=threads,
            progress=pulse,
        )
    keep(result, out, force, html, result.html)
    tell(result, output_format, lambda: texts.tiering(result.to_dict()), html)
