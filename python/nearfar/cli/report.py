"""``nearfar report``: the HTML page of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nearfar.cli._study import Force, TextFormat

GROUP = "Compare"
SETTINGS = {"epilog": "Example: nearfar report app.run -o page.html"}


def run(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folder, written by -o of a study, or several of one study."
        ),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="FILE", help="The page to write.")
    ] = Path("report.html"),
    force: Force = False,
    output_format: TextFormat = "table",
) -> None:
    """Write a self-contained HTML page of a run, a sweep, or several runs."""
    from nearfar.output import check_output, write_whole
    from nearfar.report import report

    check_output(out, force=force)
    text = report(folders)
    write_whole(out, text, force=force)
    if output_format == "json":
        answer = {"page": str(out), "bytes": len(text.encode()), "runs": list(map(str, folders))}
        print(json.dumps(answer, indent=1))
    else:
        print(f"page: {out}")
