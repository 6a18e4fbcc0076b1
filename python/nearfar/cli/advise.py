"""``nearfar advise``: a page size for a program, or for every VM of a fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Unpack

import typer

from nearfar.cli._shared import SET
from nearfar.cli._study import (
    Force,
    Format,
    Html,
    check_emitter,
    check_files,
    check_format,
    check_outputs,
    check_rows,
    emitted,
    print_result,
    save,
    say_notes,
)
from nearfar.declared import advise as advise_declared
from nearfar.errors import NearfarError
from nearfar.schema import takes

if TYPE_CHECKING:
    from nearfar.advise import AdviseResult

GROUP = "Ask"
SETTINGS = {"epilog": "Example: nearfar advise app.trace --memory 60% --machine optane-ssd"}

#: Memory sizes of ``--evaluate`` unless others are given.
_EVALUATED: Final = "10%,...,100%"


@takes(advise_declared.OPTIONS)
def run(
    inputs: Annotated[
        list[Path],
        typer.Argument(help="Trace folders, or one TOML file of a fleet of VMs (docs/advise.md)."),
    ],
    set_: SET = None,
    emit: Annotated[
        str | None,
        typer.Option(
            metavar="TOOL",
            help="Print configuration for a tool (docs/apply.md): hugetlb, "
            "kernel-cmdline, libvirt, madvise, qemu, sysfs, systemd.",
        ),
    ] = None,
    evaluate: Annotated[
        bool,
        typer.Option(
            "--evaluate",
            help="Print the model's regret (extra time over the best page); exit code 1 if above "
            "the goals.",
        ),
    ] = False,
    output_format: Format = "table",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FOLDER",
            help="Also write result.parquet, run.json and the files of --emit to a folder.",
        ),
    ] = None,
    html: Html = None,
    force: Force = False,
    **options: Unpack[advise_declared.Options],
) -> int:
    """Advise a page size: predicted and simulated time, gain, regret, settable page size."""
    import nearfar.advise as study
    from nearfar import emit as emitters
    from nearfar import machine as machines
    from nearfar.advise.plan import Plan
    from nearfar.cli._progress import progress, records

    check_format(output_format)
    check_outputs(out, force, html)
    is_fleet = any(path.suffix == ".toml" for path in inputs)
    if emit is not None:
        check_emitter("advise", emit)
        if "regions" in emitters.emitter(emit).NEEDS:
            options["regions"] = True
    if evaluate:
        _prepare_evaluate(options)
    if set_:
        chosen = machines.listed(options.get("machine"))
        if chosen is None or is_fleet:
            raise NearfarError(
                "--set: needs traces instead of a fleet, and --machine, whose values it overrides"
            )
        values = machines.parse_set(set_)
        options["machine"] = [machines.load(one, set=values) for one in chosen]
    planned = Plan.of(inputs, **options)
    vms = planned.vms
    if html is not None:
        check_rows(study.AdviseResult, len(vms))
    if emit is not None and out is None:
        check_files(emit, vms, fleet=is_fleet)
    total = records(inputs[0], options) if len(inputs) == 1 else None
    with progress(f"advise {inputs[0]}", total) as on_progress:
        result = study.carry_out(planned, on_progress)
    texts, errors = emitted(emit, result.rows, fleet=is_fleet)
    save(result, out, force, html, texts=texts)
    missed = False
    if evaluate:
        missed = _evaluate(result, output_format)
    else:
        print_result(result, output_format, texts=texts if out is None else None)
    say_notes([*result.notes, *errors])
    return 1 if errors or missed else 0


def _prepare_evaluate(options: advise_declared.Options) -> None:
    """Set the options of ``--evaluate``; refuse ``--view machine``, which has no model."""
    from nearfar.advise.by_machine import VIEW
    from nearfar.advise.regret import NO_REGRET

    if options.get("view") == VIEW:
        raise NearfarError(NO_REGRET)
    options["view"] = "paper"
    if options.get("memory") is None:
        options["memory"] = _EVALUATED


def _evaluate(result: AdviseResult, output_format: str) -> bool:
    """Print the regret; return whether all rows together miss a goal."""
    from nearfar.advise.regret import evaluate
    from nearfar.report import advise as tables
    from nearfar.report.tables import show

    evaluation = evaluate(result.rows, result.run["options"]["sizes"])
    if output_format == "json":
        print(json.dumps(evaluation, indent=1))
    else:
        show(tables.evaluation(evaluation))
    all_rows = evaluation["summary"][0]
    return not all_rows["holds"]
