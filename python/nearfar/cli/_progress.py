"""Progress on standard error: on a terminal, or with ``--progress always``."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from nearfar.errors import NearfarError
from nearfar.output import watched
from nearfar.strict import parse_json, read_json, read_trace
from nearfar.units import rest

#: Options with which a study does not read every record of the trace.
_OTHER_REFERENCES = ("kinds", "filter")


@contextmanager
def progress(doing: str, total: int | None = None) -> Iterator[Callable[[int], None] | None]:
    """Yield a function that shows the number of references done; None without progress.

    Args:
        doing: the name of the work.
        total: references per pass, if known. A count that restarts or exceeds it is another pass.
    """
    if not watched():
        yield None
        return
    shown = _Shown(doing, total)
    try:
        yield shown.show
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def records(
    trace: str | PathLike[str], options: Mapping[str, Any] | None = None, cells: int = 1
) -> int | None:
    """The references that a study reads from a trace; None if unknown.

    Args:
        trace: a trace folder.
        options: the study's.
        cells: the number of times that it reads the trace.
    """
    if any(options.get(name) not in (None, "none") for name in _OTHER_REFERENCES if options):
        return None
    try:
        info = parse_json(read_trace(Path(trace)))
        return int(info["records"]) * cells
    except (NearfarError, ValueError, KeyError, TypeError):
        return None  # the study raises the error


def records_of_run(run: Path) -> int | None:
    """:func:`records` of the trace of a run folder."""
    try:
        content = read_json(run / "run.json")
        return records(content["trace"], content["options"])
    except (NearfarError, ValueError, KeyError, TypeError):
        return None


def given(count: object) -> int | None:
    """The count of references in an option; None for other text, such as a time."""
    text = str(count)
    return int(text) if text.isdecimal() else None


class _Shown:
    """The progress line."""

    def __init__(self, doing: str, total: int | None) -> None:
        self.doing, self.total = doing, total
        self.last, self.number, self.began = 0, 1, time.monotonic()

    def show(self, count: int) -> None:
        """Show that ``count`` references are done."""
        print(f"\r\033[K{self.line(count, time.monotonic())}", end="", file=sys.stderr, flush=True)

    def line(self, count: int, now: float) -> str:
        """The line at the time ``now``."""
        if not self.total:
            return f"{self.doing}: {count / 1e6:,.0f} M references"
        done = (count - 1) % self.total + 1 if count else 0
        if done < self.last:
            self.number, self.began = self.number + 1, now
        self.last = done
        text = f"{self.doing}: {done / 1e6:,.0f} of {self.total / 1e6:,.0f} M references"
        if self.number > 1:
            text += f", pass {self.number}"
        return text + rest(done, self.total, now - self.began)


def made(trace: Path, as_json: bool) -> None:
    """Print a new trace's ``trace.json``, or a line about it."""
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
