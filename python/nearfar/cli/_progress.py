"""Progress on standard error, only where someone is looking."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int], None] | None]:
    """Give a callable that shows how many references are done; none off a terminal."""
    if not sys.stderr.isatty():
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
    pages = sum(info["pages_by_kinds"].values())
    skipped = info["source"]["skipped_records"]
    print(
        f"{trace}: {info['source']['kind']} {info['source']['detail']}, "
        f"{info['records']:,} references, {len(info['threads'])} threads, {pages:,} pages of 4 KiB"
        + (f", {skipped:,} bad records skipped" if skipped else "")
        + (" (a sample: reuse distances are not the program's)" if info["source"]["sampled"] else "")
    )
