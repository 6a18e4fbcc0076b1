"""``nearfar generate``: synthetic traces with known statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from nearfar.cli._study import Force
from nearfar.declared import generate as declared
from nearfar.schema import takes

GROUP = "Record"
SETTINGS = {
    "epilog": "Example: nearfar generate zipf -o zipf.trace --refs 200000 --pages 5000 --seed 1"
}


@takes(declared.OPTIONS)
def run(
    name: str,
    out: Annotated[Path, typer.Option("-o", "--out", metavar="FOLDER", help="Trace folder.")],
    *,
    refs: int,
    pages: int,
    force: Force = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print trace.json.")] = False,
    **options: Unpack[declared.Options],
) -> None:
    """Generate a synthetic trace; the same seed gives the same bytes (docs/generate.md)."""
    import nearfar.generate as generator
    from nearfar.cli._progress import as_count, print_trace, progress

    with progress(f"generating {name}", as_count(refs)) as on_progress:
        trace = generator.generate(
            name, out, refs=refs, pages=pages, force=force, progress=on_progress, **options
        )
    print_trace(trace, as_json)
