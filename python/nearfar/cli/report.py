"""``nearfar report``: one page of any run, of several, or of a sweep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from nearfar.cli._study import check_format

SETTINGS = {"epilog": "Example: nearfar report before.run after.run -o page.html"}


def run(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, written by -o of a study or by a sweep.")
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path(
        "report.html"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace an existing page.")] = False,
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Draw runs as one self-contained page that works offline."""
    from nearfar.output import check_output, write_whole
    from nearfar.report import report

    check_format(output_format, ("table", "json"))
    check_output(out, force=force)
    text = report(runs)
    write_whole(out, text, force=force)
    if output_format == "json":
        answer = {"page": str(out), "bytes": len(text.encode()), "runs": [str(one) for one in runs]}
        print(json.dumps(answer, indent=1))
    else:
        print(f"page: {out}")
