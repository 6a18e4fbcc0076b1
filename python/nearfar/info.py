"""What a trace holds: counts, footprint, working set, regions, reuse (``docs/info.md``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

from nearfar import _engine
from nearfar.declared import info as declared
from nearfar.filter import view_of
from nearfar.result import Result
from nearfar.schema import Column, Rows, takes

_ROWS: Final = Rows(
    columns=(
        Column("section", "string", False, "", "`trace`, or the key of a table or list."),
        Column("item", "string", False, "", "Which item of a list, or empty."),
        Column("quantity", "string", False, "", "What the value is of."),
        Column("value", "string", False, "", "A number or text, as text."),
    ),
    keys=("section", "item", "quantity"),
    metrics={},
)
TABLES: Final = {"rows": _ROWS}


class Verified(TypedDict):
    """A file of a trace that was found whole; ``rows``: its records or events."""

    file: str
    bytes: int
    rows: int
    checksum: str | None


class Info(dict[str, Any], Result):
    """What a trace holds, by the keys of ``docs/info.md``.

    ``heatmap`` and ``verified`` are there if asked for.
    """

    shown = "nearfar.report.tables:info"
    page = "nearfar.report.html.info:InfoPage"
    chart = "nearfar.report.plots.info:draw"

    def to_dict(self) -> dict[str, Any]:
        """Everything but the heat map, as ``--format json`` prints it."""
        return {key: value for key, value in self.items() if key != "heatmap"}

    def html(self) -> str:
        """A self-contained page of the trace, with its heat map where that was asked for."""
        return self._html(heatmap=self.get("heatmap"))

    @property
    def table(self) -> Any:
        """One number or text a row, as a ``pyarrow.Table``: see :func:`rows`; values as text."""
        names = [column.name for column in _ROWS.columns]
        texts = (
            ["" if cell is None else str(cell) for cell in row] for row in rows(self.to_dict())
        )
        return _ROWS.table([dict(zip(names, row, strict=True)) for row in texts])


@takes(declared.OPTIONS)
def info(
    trace: str | PathLike[str],
    *,
    heatmap: bool = True,
    progress: Callable[[int], None] | None = None,
    **options: Unpack[declared.Options],
) -> Info:
    """Read a trace and say what it holds.

    Args:
        trace: a trace folder, or a :class:`nearfar.trace.Trace`.
        heatmap: add the heat map as ``heatmap``, for which the trace is read a second time.
        progress: called with the number of references so far, about every four million.
        {options}

    Returns:
        What ``nearfar info --format json`` prints, and ``heatmap``; ``docs/info.md`` describes
        every key.

    Raises:
        NearfarError: no such trace, a damaged one, or, with ``verify``, a file that is not what
            ``trace.json`` says.
        KeyboardInterrupt: Ctrl-C.
    """
    path = Path(trace)
    with view_of(path, options, progress) as (seen, given):
        text, heat, files = _engine.info_summarize(
            seen.path, path, options=given, heat_map=heatmap, progress=progress
        )
    found = Info(json.loads(text), trace=str(path), filter=seen.filter, view=seen.sentence)
    if files is not None:
        found["verified"] = json.loads(files)
    if heat is not None:
        found["heatmap"] = json.loads(heat)
    return found


def rows(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, object]]:
    """Give a result as rows (section, item, quantity, value): one number or text a row.

    Args:
        found: what :func:`info` returned; its heat map is left out.
    """
    for key, value in found.items():
        if key == "heatmap":
            continue
        if isinstance(value, Mapping):
            for quantity, one in value.items():
                yield key, "", quantity, _cell(one)
        elif isinstance(value, list):
            for item in value:
                name = _ITEM.get(key, "")
                label = item.get(name)
                for quantity, one in item.items():
                    if quantity != name:
                        yield key, "first" if label is None else str(label), quantity, _cell(one)
        else:
            yield "trace", "", key, _cell(value)


#: The key that names an item of a list.
_ITEM = {
    "threads": "index",
    "working_set": "record",
    "regions": "name",
    "reuse": "distance_log2",
    "verified": "file",
}


def _cell(value: object) -> object:
    return " ".join(map(str, value)) if isinstance(value, list) else value
