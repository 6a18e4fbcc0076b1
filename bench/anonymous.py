"""The part of a capture that a memory limit with swap is about: anonymous pages, once written.

The kernel gives a program anonymous memory at the first write to a page (before that, reads see one
shared page of zeros) and swaps only that. Private pages of files become anonymous by a write, too;
all others stay in the page cache, which is not limited here.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy
import pyarrow
import pyarrow.parquet

import nearfar

_SHIFT = 12
#: From here up a trace names the kernel's page cache.
_PAGE_CACHE = 1 << 63
_COLUMNS = ["addr", "kind", "size"]


def anonymous(trace: Path, to: Path) -> int:
    """Write the trace of the anonymous pages of ``trace``, and answer how many they are.

    A record is a run of references to one page, from the first write to it on.
    """
    source = nearfar.open(trace)
    first: dict[int, int] = {}
    at = 0
    for batch in source.batches(_COLUMNS):
        kind = batch.column(1).cast(pyarrow.string()).to_numpy(zero_copy_only=False)
        stores = numpy.isin(kind, ["store", "kernel-store"])
        pages, order = _pages(batch, stores)
        found, index = numpy.unique(pages, return_index=True)
        for page, record in zip(found.tolist(), order[index].tolist(), strict=True):
            first.setdefault(page, at + record)
        at += batch.num_rows
    written = numpy.array(sorted(first), dtype=numpy.uint64)
    since = numpy.array([first[int(page)] for page in written], dtype=numpy.int64)

    to.mkdir()
    parts = []
    at, last = 0, None
    for batch in source.batches(_COLUMNS):
        pages, order = _pages(batch, numpy.ones(batch.num_rows, dtype=bool))
        # Of each run its last record: if the page is written by then, the run counts.
        ends = numpy.append(pages[1:] != pages[:-1], [True])[: len(pages)]
        pages, order = pages[ends], order[ends]
        place = numpy.searchsorted(written, pages)
        place[place == len(written)] = 0
        keep = (written[place] == pages) & (at + order >= since[place])
        pages = pages[keep]
        at += batch.num_rows
        if not len(pages):
            continue
        new = numpy.ones(len(pages), dtype=bool)
        new[1:] = pages[1:] != pages[:-1]
        new[0] = last is None or pages[0] != last
        last = pages[-1]
        parts.append(_part(to, len(parts), pages[new]))
    records = sum(part["records"] for part in parts)
    info = {
        **source.info,
        "records": records,
        "instructions": 0,
        "records_by_kind": {"store": records},
        "pages_by_kinds": {"store": len(written)},
        "threads": [{"index": 0, "process": 1, "records": records, "instructions": 0}],
        "parts": parts,
    }
    info.pop("regions", None)  # No events are written.
    (to / "trace.json").write_text(json.dumps(info), encoding="utf-8")
    return len(written)


def _pages(batch: pyarrow.RecordBatch, chosen: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
    """Pages that the chosen records touch, in order, and the place of the record of each."""
    address = batch.column(0).to_numpy()
    chosen = chosen & (address < _PAGE_CACHE)
    (order,) = numpy.nonzero(chosen)
    address = address[order]
    size = numpy.maximum(batch.column(2).to_numpy()[order].astype(numpy.uint64), 1)
    begin = address >> numpy.uint64(_SHIFT)
    end = (address + size - numpy.uint64(1)) >> numpy.uint64(_SHIFT)
    longest = int((end - begin).max(initial=0))
    if longest == 0:
        return begin, order
    # A record over a border touches the pages on both sides, in order.
    steps = numpy.arange(longest + 1, dtype=numpy.uint64)
    pages = begin[:, None] + steps
    inside = pages <= end[:, None]
    return pages[inside], numpy.broadcast_to(order[:, None], pages.shape)[inside]


def _part(to: Path, number: int, pages: numpy.ndarray) -> dict[str, object]:
    """Write one part, all columns of a trace."""
    count = len(pages)
    kind = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(numpy.zeros(count, dtype=numpy.int8)), ["store"]
    )
    columns = {
        "addr": pyarrow.array(pages << numpy.uint64(_SHIFT)),
        "kind": kind.cast(pyarrow.string()),
        "size": pyarrow.array(numpy.ones(count, dtype=numpy.uint16)),
        "thread": pyarrow.array(numpy.zeros(count, dtype=numpy.uint32)),
        "instr": pyarrow.array(numpy.zeros(count, dtype=numpy.uint32)),
    }
    fields = [pyarrow.field(name, column.type, nullable=False) for name, column in columns.items()]
    table = pyarrow.table(list(columns.values()), schema=pyarrow.schema(fields))
    file = to / f"part-{number:05}.parquet"
    pyarrow.parquet.write_table(table, file, compression="zstd")
    return {"file": file.name, "records": count, "bytes": file.stat().st_size}
