"""Summary of a trace: counts, footprint, working set, regions, reuse (``docs/info.md``)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict, Unpack, cast

from nearfar import _engine
from nearfar.columns import text
from nearfar.declared import info as declared
from nearfar.filter import view_of
from nearfar.result import Result
from nearfar.schema import Rows, takes
from nearfar.strict import parse_json, read_trace
from nearfar.symbols import HotSite, Symbols

if TYPE_CHECKING:
    import pyarrow

_ROWS: Final = Rows(
    columns=(
        text(
            "section",
            "Key of the table or list in the summary (`--format json`); `trace` for a single "
            "value.",
        ),
        text("item", "Name or number of the item of a list; else empty."),
        text("quantity", "Name of the value."),
        text("value", "A number or text, as text."),
    ),
    keys=("section", "item", "quantity"),
    metrics={},
)
TABLES: Final = {"rows": _ROWS}


class Verified(TypedDict):
    """A file of a trace in which ``verify`` found no error; ``rows``: its records or events."""

    file: str
    bytes: int
    rows: int
    checksum: str | None


class Thread(TypedDict):
    """A thread of the program, or a task of a virtual machine; only a task has a ``name``."""

    index: int
    process: int
    name: NotRequired[str]
    records: int
    instructions: int


class AddressBin(TypedDict):
    """A range of addresses of a heat map."""

    addr_low: int
    addr_high: int
    label: str
    pages: int


class HeatMap(TypedDict):
    """References by address, low to high, and time: ``counts[address][time]``.

    ``seconds`` holds the start of each time bin and the end of the last; None if the trace has no
    clock.
    """

    time_bins: int
    address_bins: list[AddressBin]
    counts: list[list[int]]
    records_per_bin: int
    seconds: list[float] | None


class Sample(TypedDict):
    """The sample of ``capture --sample``; ``rate``: its share of the 4 KiB pages."""

    rate: float


class Source(TypedDict):
    """Where a trace comes from; ``unrecorded``: missing parts of the run, if any."""

    kind: str
    detail: str
    command: list[str]
    arch: str
    unrecorded: NotRequired[list[str]]
    sample: NotRequired[Sample]


class Content(TypedDict, total=False):
    """The keys of an :class:`Info` that other modules read."""

    trace: str
    filter: str
    view: str
    complete: bool
    incomplete_reason: str | None
    records: int
    instructions: int
    records_by_kind: dict[str, int]
    footprint_bytes: int
    peak_resident_bytes: int | None
    locked_bytes: int
    source: Source
    threads: list[Thread]
    working_set: list[declared.WorkingSetRow]
    working_set_records: int
    regions: list[declared.RegionsRow]
    hot: list[declared.HotRow]
    reuse: list[declared.ReuseRow]
    verified: list[Verified]
    heatmap: HeatMap


class Info(dict[str, Any], Result):
    """The summary of a trace, by the keys of ``docs/info.md``.

    ``heatmap`` and ``verified`` are optional.
    """

    shown = "nearfar.report.tables:info"
    page = "nearfar.report.html.info:InfoPage"
    chart = "nearfar.report.plots.info:draw"

    @property
    def content(self) -> Content:
        """The keys with their types."""
        return cast("Content", self)

    def to_dict(self) -> dict[str, Any]:
        """Everything but the heat map, as ``--format json`` prints it."""
        return {key: value for key, value in self.items() if key != "heatmap"}

    def html(self) -> str:
        """A self-contained page of the trace, with its heat map if it has one."""
        return self._html()

    @property
    def table(self) -> pyarrow.Table:
        """The result of :func:`rows`, with values as text."""
        names = [column.name for column in _ROWS.columns]
        cells = (
            ["" if cell is None else str(cell) for cell in row] for row in rows(self.to_dict())
        )
        return _ROWS.table([dict(zip(names, row, strict=True)) for row in cells])


@takes(declared.OPTIONS)
def info(
    trace: str | PathLike[str],
    *,
    heatmap: bool = True,
    sample: bool = False,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Info:
    """Summarize a trace.

    Args:
        trace: a trace folder, or a :class:`nearfar.trace.Trace`.
        heatmap: add the heat map as ``heatmap``, which takes a second pass over the trace.
        sample: also read a trace of ``capture --sample``. Its events and distinct pages are those
            of the program; all numbers of references are those of its records.
        progress: called with the number of references so far, about every four million.
        {options}

    Returns:
        The keys of ``nearfar info --format json``, and ``heatmap``; ``docs/info.md`` describes
        every key.

    Raises:
        NearfarError: no such trace, a damaged one, or, with ``verify``, a file that is not what
            ``trace.json`` says.
        KeyboardInterrupt: Ctrl-C.
    """
    path = Path(trace)
    with view_of(path, options, progress) as (opened, given):
        text, heat, files = _engine.info_summarize(
            opened.path, path, options=given, heat_map=heatmap, sample=sample, progress=progress
        )
    summary = json.loads(text)
    _name_functions(summary["hot"], summary.pop("hot_code"), path)
    result = Info(summary, trace=str(path), filter=opened.filter, view=opened.sentence)
    if files is not None:
        result["verified"] = json.loads(files)
    if heat is not None:
        result["heatmap"] = json.loads(heat)
    return result


def _name_functions(
    parts: Sequence[declared.HotRow], sites: Sequence[HotSite], trace: Path
) -> None:
    """Set ``function`` of each hot part: the one with most references in the sample ``sites``."""
    source = parse_json(read_trace(trace))
    symbols = Symbols(source.get("build_ids", {}), maps=trace.glob("perf-*.map"))
    counts: list[Counter[str]] = [Counter() for _ in parts]
    for site, file, code in symbols.codes(sites):
        function = hex(site["addr"]) if code is None else code.function
        library = f" in {Path(file or site['name']).name}" if file or code is None else ""
        counts[site["part"]][function + library] += site["samples"]
    for part, count in zip(parts, counts, strict=True):
        for function, samples in count.most_common(1):
            part["function"], part["function_share"] = function, samples / count.total()


def rows(info: Mapping[str, object]) -> Iterator[tuple[str, str, str, object]]:
    """A result as rows (section, item, quantity, value), each with one number or text.

    Args:
        info: the result of :func:`info`; its heat map is left out.
    """
    for key, value in info.items():
        if key == "heatmap":
            continue
        if isinstance(value, Mapping):
            for quantity, cell in value.items():
                yield key, "", quantity, _cell(cell)
        elif isinstance(value, list):
            for item in value:
                name = _ITEM.get(key, "")
                # None for the first touches in `reuse`, which have no distance.
                label = item.get(name)
                for quantity, cell in item.items():
                    if quantity != name:
                        yield key, "first" if label is None else str(label), quantity, _cell(cell)
        else:
            yield "trace", "", key, _cell(value)


#: The key that names an item of a list.
_ITEM = {
    "threads": "index",
    "working_set": "record",
    "regions": "name",
    "hot": "addr_low",
    "reuse": "distance_log2",
    "verified": "file",
}


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list) else value
