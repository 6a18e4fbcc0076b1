"""Progress on standard error (on a terminal, or with ``--progress always``); a trace's summary."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from nearfar.errors import NearfarError
from nearfar.output import shows_progress
from nearfar.strict import parse_json, read_json, read_trace
from nearfar.units import rest

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: Options that select some of the trace's records.
_SELECTING = ("kinds", "filter")


class Unit(NamedTuple):
    """The unit in which progress is shown; ``size``: counted items per unit."""

    name: str
    size: float


REFERENCES: Final = Unit("M references", 1e6)
SECONDS: Final = Unit("s", 1)


@contextmanager
def progress(
    doing: str, total: int | None = None, unit: Unit = REFERENCES
) -> Iterator[Callable[[int], None] | None]:
    """Yield a function that shows the count done so far, or None if progress is not shown.

    Args:
        doing: the name of the work.
        total: the count of one pass, if known. A count that restarts or exceeds it is another pass.
        unit: the unit that is shown.
    """
    if not shows_progress():
        yield None
        return
    line = _Line(doing, total, unit)
    try:
        yield line.show
    finally:
        clear()


def clear() -> None:
    """Remove the progress line before other output."""
    if shows_progress():
        print("\r\033[K", end="", file=sys.stderr, flush=True)


@contextmanager
def live(view: Callable[[], RenderableType]) -> Iterator[Console]:
    """Show the result of ``view``, updated every second, until the block ends.

    Yields a console that prints above the view.
    """
    from rich.live import Live

    from nearfar.report.tables import console

    with Live(console=console(), get_renderable=view, refresh_per_second=1) as shown:
        yield shown.console


def records(
    trace: str | PathLike[str], options: Mapping[str, object] | None = None, cells: int = 1
) -> int | None:
    """The number of references that a study reads from a trace; None if unknown.

    Args:
        trace: a trace folder.
        options: the options of the study.
        cells: how many times the study reads the trace.
    """
    if any(options.get(name) not in (None, "none") for name in _SELECTING if options):
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


def as_count(count: object) -> int | None:
    """The count of references in an option; None for other text, such as a time."""
    text = str(count)
    return int(text) if text.isdecimal() else None


class _Line:
    def __init__(self, doing: str, total: int | None, unit: Unit = REFERENCES) -> None:
        self.doing, self.total, self.unit = doing, total, unit
        self.last, self.passes, self.began = 0, 1, time.monotonic()

    def show(self, count: int) -> None:
        print(f"\r\033[K{self.line(count, time.monotonic())}", end="", file=sys.stderr, flush=True)

    def line(self, count: int, now: float) -> str:
        if not self.total:
            return f"{self.doing}: {count / self.unit.size:,.0f} {self.unit.name}"
        done = (count - 1) % self.total + 1 if count else 0
        if done < self.last:
            self.passes, self.began = self.passes + 1, now
        self.last = done
        of = self.total / self.unit.size
        text = f"{self.doing}: {done / self.unit.size:,.0f} of {of:,.0f} {self.unit.name}"
        if self.passes > 1:
            text += f", pass {self.passes}"
        return text + rest(done, self.total, now - self.began)


def print_trace(trace: Path, as_json: bool) -> None:
    """Print a trace's ``trace.json``, or a line about it."""
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
