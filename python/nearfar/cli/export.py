"""``nearfar export``: a trace as another tool reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {"epilog": "Example: nearfar export app.trace --format csv -o app.csv"}

#: The engine takes 64 bits.
MOST = 2**64 - 1


def run(
    trace: Annotated[Path, typer.Argument(help="Trace folder.")],
    format: Annotated[  # noqa: A002
        str, typer.Option(metavar="NAME", help="oracle-general, dinero or csv.")
    ],
    out: Annotated[
        str, typer.Option("-o", "--out", help="File, or - for stdout (not oracle-general).")
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    kinds: Annotated[
        str,
        typer.Option(
            metavar="LIST",
            help="Of load,store,fetch,kernel-load,kernel-store only these [default: all].",
        ),
    ] = "",
    filter: Annotated[  # noqa: A002
        str,
        typer.Option(help="none, or cache: only references that miss the machine's caches."),
    ] = "none",
    machine: Annotated[str, typer.Option(help="Machine of --filter.")] = "desktop-nvm",
    max_refs: Annotated[
        int | None, typer.Option(min=1, max=MOST, metavar="N", help="Stop after N references.")
    ] = None,
    page_bytes: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, metavar="N", help="oracle-general: bytes of a page [4096]."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Export a trace for another tool (formats: docs/formats.md)."""
    from nearfar import exporter
    from nearfar.cli._progress import progress

    with progress(f"exporting {trace}") as pulse:
        count = exporter.export_trace(
            trace,
            out,
            format=format,
            force=force,
            kinds=[kind.strip() for kind in kinds.split(",")] if kinds else (),
            filter=filter,
            machine=machine,
            max_refs=max_refs,
            page_bytes=page_bytes,
            progress=pulse,
        )
    if out == "-":
        return
    if as_json:
        print(json.dumps({"file": out, "format": format, "references": count}))
    else:
        print(f"{out}: {count:,} references as {format}")
