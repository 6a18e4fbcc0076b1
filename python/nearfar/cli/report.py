"""``nearfar report``: the page of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nearfar.cli._study import check_format

#: Where `nearfar --help` lists it.
GROUP = "Compare"
SETTINGS = {"epilog": "Example: nearfar report app.run -o page.html"}


def run(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN", help="Run folder, written by -o of a study.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "report.html"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing page.")] = False,
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Draw a run as one self-contained page that works offline."""
    from nearfar.output import check_output, write_whole
    from nearfar.report import report

    check_format(output_format, ("table", "json"))
    check_output(out, force=force)
    text = report(folder)
    write_whole(out, text, force=force)
    if output_format == "json":
        answer = {"page": str(out), "bytes": len(text.encode()), "run": str(folder)}
        print(json.dumps(answer, indent=1))
    else:
        print(f"page: {out}")
