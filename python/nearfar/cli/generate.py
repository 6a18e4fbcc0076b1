"""``nearfar generate``: synthetic traces of known statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {
    "epilog": "Example: nearfar generate zipf -o zipf.trace --refs 200000 --pages 5000 --seed 1"
}

#: The engine takes 64 bits.
MOST = 2**64 - 1


def run(
    name: Annotated[
        str,
        typer.Argument(
            help="zipf, scrambled-zipf, uniform, sequential, strided, pointer-chase or mix."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="Trace folder.")],
    refs: Annotated[int, typer.Option(min=0, max=MOST, help="References in all.")],
    pages: Annotated[int, typer.Option(min=0, max=MOST, help="Pages they may touch.")],
    page_bytes: Annotated[int, typer.Option(min=0, max=MOST, help="Bytes in a page.")] = 4096,
    seed: Annotated[int, typer.Option(min=0, max=MOST, help="Chooses the random streams.")] = 0,
    write_ratio: Annotated[float, typer.Option(help="Share of stores, 0 to 1.")] = 0.0,
    threads: Annotated[int, typer.Option(min=0, max=4096, help="Threads that take turns.")] = 1,
    alpha: Annotated[
        float | None, typer.Option(help="zipf: skew, 0 (even) and up [default: 1].")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(min=0, max=MOST, metavar="BYTES", help="strided: step [default: a page]."),
    ] = None,
    mix: Annotated[
        str | None, typer.Option(metavar="PARTS", help="mix: zipf:0.7,sequential:0.3")
    ] = None,
    phase: Annotated[
        int | None,
        typer.Option(min=0, max=MOST, metavar="REFS", help="mix: run the parts one by one."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing trace.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print trace.json.")] = False,
) -> None:
    """Generate a synthetic trace; the same seed gives the same bytes (docs/generate.md)."""
    from nearfar import generate
    from nearfar.cli._progress import made, progress

    with progress(f"generating {name}") as pulse:
        trace = generate.generate(
            name,
            out,
            refs=refs,
            pages=pages,
            page_bytes=page_bytes,
            seed=seed,
            write_ratio=write_ratio,
            threads=threads,
            alpha=alpha,
            stride=stride,
            mix=mix,
            phase=phase,
            force=force,
            progress=pulse,
        )
    made(trace, as_json)
