"""Progress on standard error, where someone is looking or ``--progress`` asks for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nearfar.output import watched


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int], None] | None]:
    """Give a callable that shows how many references are done; none if nobody looks."""
    if not watched():
        yield None
        return

    def show(count: int) -> None:
        print(f"\r{doing}: {count / 1e6:,.0f} M references", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def made(trace: Path, as_json: bool) -> None:
    """Say what trace was made: its ``trace.json``, or a line of it."""
    text = (trace / "trace.json").read_text(encoding="utf-8")
    info = json.loads(text)
    if as_json:
        print(json.dumps({"trace": str(trace), "info": info}, indent=2))
        return
    source = info["source"]
    threads = len(info["threads"])
    pages = sum(info["pages_by_kinds"].values())
    line = (
        f"{trace}: {source['kind']} {source['detail']}, {info['records']:,} references, "
        f"{threads} thread{'s' if threads > 1 else ''}, {pages:,} pages of 4 KiB"
    )
    if source["skipped_records"]:
        line += f", {source['skipped_records']:,} bad records skipped"
    if source["sampled"]:
        line += " (a sample: reuse distances are not the program's)"
    print(line)
