"""``nearfar tiering``: policies that move pages between fast and slow memory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import (
    Force,
    Format,
    Html,
    check_format,
    check_outputs,
    print_result,
    save,
    say_notes,
)
from nearfar.declared import tiering as declared
from nearfar.schema import takes

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar tiering --policy nomad,ssp --mix write --seeds 8"}


@takes(declared.OPTIONS)
def run(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            help="Trace folders [default: a generated workload]; several share a machine."
        ),
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(
            metavar="POLICY.NAME=VALUE",
            help="A knob of a policy, such as tpp.demote_scale=200; repeatable.",
        ),
    ] = None,
    knobs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="TOML file of knobs, one table per policy."),
    ] = None,
    list_policies: Annotated[
        bool, typer.Option("--list", help="List policies and their knobs; simulate nothing.")
    ] = False,
    output_format: Format = "table",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FOLDER",
            help="Also write result.parquet, series.parquet and run.json to a folder.",
        ),
    ] = None,
    html: Html = None,
    force: Force = False,
    **options: Unpack[declared.Options],
) -> None:
    """Compare tiering policies in a simulation: bandwidth, migrations, shadow copies, faults."""
    from nearfar.cli._progress import progress
    from nearfar.errors import NearfarError
    from nearfar.report import tables, terminal
    from nearfar.report import tiering as texts
    from nearfar.tiering import policies, read_knobs, tiering
    from nearfar.tiering_answers import policy_curves, too_small

    check_format(output_format)
    if list_policies:
        found = policies()
        if output_format == "json":
            import json

            print(json.dumps(found, indent=1))
        else:
            tables.show(texts.policies(found))
        return
    check_outputs(out, force, html)
    values = {} if knobs is None else read_knobs(knobs)
    for item in knob or []:
        key, equals, value = item.partition("=")
        if not equals:
            raise NearfarError(
                f"--knob: {item!r} has no value; write for example tpp.demote_scale=200"
            )
        values[key.strip()] = value.strip()
    with progress("tiering") as on_progress:
        result = tiering(
            *map(Path, traces or ()),
            knobs=values,
            progress=on_progress,
            **options,
        )
    save(result, out, force, html)
    print_result(result, output_format, html)
    if output_format != "table":  # the answers above the table say if the run is too small
        say_notes(filter(None, [too_small(result.run)]))
        return
    curves = policy_curves(result)
    if curves:
        print(terminal.memory(curves, "fast memory"))
