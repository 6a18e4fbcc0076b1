"""``nearfar advise``: a page size for a workload, or for every VM of a fleet."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearfar.cli._shared import SET
from nearfar.cli._study import Force, Format, Html, check_format, keep, names, tell

if TYPE_CHECKING:
    from nearfar.advise import AdviseResult

SETTINGS = {"epilog": "Example: nearfar advise app.trace --memory 60% --machine optane-ssd"}


def run(
    inputs: Annotated[list[Path], typer.Argument(help="Trace folders, or one fleet.toml.")],
    memory: Annotated[
        str | None,
        typer.Option(help="Parts of the footprint (60%) or bytes (512M) [default: 50%]."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            help="Machine names or files; `all`: every built-in one [default: desktop-nvm, or one "
            "that has --storage]."
        ),
    ] = None,
    set_: SET = None,
    storage: Annotated[
        str | None, typer.Option(help="Storages of the machine [default: all].")
    ] = None,
    arch: Annotated[str, typer.Option(help="x86-64 or aarch64.")] = "x86-64",
    min_gain: Annotated[str, typer.Option(help="Leave 4 KiB only for at least this gain.")] = "5%",
    sizes: Annotated[
        str,
        typer.Option(help="What the model is shown: all, 512,4K,64K,2M, or 4 that it chooses."),
    ] = "all",
    model: Annotated[
        str, typer.Option(help="auto, papers (their forms only) or bridge (never them).")
    ] = "auto",
    page_sizes: Annotated[
        str, typer.Option(help="What may be advised; powers of two, `...` doubles.")
    ] = "512,1K,...,2M",
    tlb: Annotated[
        str, typer.Option(help="Entries (64), with ways (64x4), two levels (64+1536x12).")
    ] = "64",
    replacement: Annotated[str, typer.Option(help="clock, lru or linux.")] = "clock",
    clock_insert: Annotated[
        str, typer.Option(help="CLOCK loads a page with its bit: set or clear.")
    ] = "set",
    kinds: Annotated[
        str | None,
        typer.Option(help="load, store, fetch, kernel-load, kernel-store [default: all]."),
    ] = None,
    filter: Annotated[  # noqa: A002
        str,
        typer.Option(help="none, or cache: only references that miss the machine's caches."),
    ] = "none",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: one a core.")] = 0,
    emit: Annotated[
        str | None,
        typer.Option(help="Print configuration: libvirt, qemu, sysfs, systemd, kernel-cmdline."),
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Regret over all rows; exit 1 if a goal is missed.")
    ] = False,
    output_format: Format = "table",
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Also write result.parquet, run.json and what --emit made."
        ),
    ] = None,
    html: Html = None,
    force: Force = False,
) -> int:
    """Advise a page size: predicted and simulated time, gain, regret, and what can be set."""
    from nearfar import advise as study
    from nearfar import emit as emitters
    from nearfar import machine as machines
    from nearfar.advise.fleet import parse_gain
    from nearfar.cli._progress import progress
    from nearfar.errors import NearfarError

    check_format(output_format)
    if emit is not None:
        emitters.emitter(emit)  # an unknown one is said before the work, not after
    options: dict[str, Any] = {
        "sizes": sizes,
        "model": model,
        "page_sizes": page_sizes,
        "tlb": tlb,
        "replacement": replacement,
        "clock_insert": clock_insert,
        "kinds": names(kinds),
        "filter": filter,
        "threads": threads,
    }
    fleet = [path for path in inputs if path.suffix == ".toml"]
    if fleet and len(inputs) > 1:
        raise NearfarError(f"{fleet[0]}: give one fleet file and nothing else, or traces only")
    gain = parse_gain(min_gain, "--min-gain")
    chosen = machines.paging_to_storage() if machine == "all" else names(machine)
    described: list[machines.MachineLike] | None = None if chosen is None else list(chosen)
    if set_:
        if fleet or described is None:
            raise NearfarError("--set: give traces and the --machine whose value it is")
        values = machines.parse_set(set_)
        described = [machines.load(name, set=values) for name in described]
    with progress(f"advise {inputs[0]}") as pulse:
        if fleet:
            result = study.advise_fleet(
                fleet[0],
                memory=memory or study.MEMORY,
                machine=machine,
                storage=storage,
                arch=arch,
                min_gain=min_gain,
                progress=pulse,
                **options,
            )
        else:
            result = study.advise(
                inputs,
                memory=memory or ("10%,...,100%" if evaluate else study.MEMORY),
                machine=described,
                storage=names(storage),
                arch=arch,
                min_gain=gain,
                progress=pulse,
                **options,
            )
    if emit is not None and out is None and len(result.rows) > 1:
        raise NearfarError(f"--emit: {len(result.rows)} VMs make as many files; give -o FOLDER")
    emitted, failed = _emitted(result, emit)
    if failed and not emitted:
        raise NearfarError(failed[0])
    keep(result, out, force, html, result.html, texts=emitted)
    missed = False
    if evaluate:
        missed = _evaluate(result, sizes, output_format)
    else:
        _print(result, output_format, emitted if out is None else {})
    for line in [*result.notes, *failed]:
        print(f"nearfar: note: {line}", file=sys.stderr)
    return 1 if failed or missed else 0


def _emitted(result: AdviseResult, kind: str | None) -> tuple[dict[str, str], list[str]]:
    """Text of each VM by file name, and why others have none."""
    from nearfar import emit as emitters
    from nearfar.errors import NearfarError

    told: dict[str, str] = {}
    failed = []
    for row in result.rows if kind is not None else []:
        try:
            name = emitters.file_name(str(kind), row)
            if name in told:
                raise NearfarError(
                    f"{row['vm']}: another VM has the file {name} already; rename it"
                )
            told[name] = emitters.emit(str(kind), row)
        except NearfarError as error:
            failed.append(str(error))
    return told, failed


def _evaluate(result: AdviseResult, sizes: str, output_format: str) -> bool:
    """Print the regret over all rows; whether a goal was missed."""
    from nearfar.advise.regret import evaluate
    from nearfar.report import advise as tables
    from nearfar.report.tables import show

    found = evaluate(result.rows, sizes)
    if output_format == "json":
        print(json.dumps(found, indent=1))
    else:
        show(tables.evaluation(found))
    return not found["summary"][0]["holds"]


def _print(result: AdviseResult, output_format: str, emitted: dict[str, str]) -> None:
    if emitted:
        print("\n".join(emitted.values()), end="")
    else:
        from nearfar.report import advise as tables

        tell(result, output_format, lambda: tables.advice(result.to_dict()))
