"""A trace folder, opened for Arrow, Polars and notebooks (``docs/trace.md``).

>>> trace = nearfar.open("gzip.trace")
>>> trace.table(["addr", "kind"]).num_rows == len(trace)
True
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfar import _engine, units
from nearfar.errors import NearfarError
from nearfar.strict import Json

if TYPE_CHECKING:
    import polars
    import pyarrow
    import pyarrow.dataset

#: The columns of a trace, in order.
COLUMNS = ("addr", "kind", "size", "thread", "instr")
_PAGE = 4096


class Trace:
    """A trace folder whose parts exist and are not truncated; the capture may be incomplete.

    Attributes:
        path: the folder.
        info: contents of ``trace.json``.
    """

    def __init__(self, path: Path, info: Json) -> None:
        """Use :func:`open` instead, which checks the folder."""
        self.path = path
        self.info = info

    @property
    def parts(self) -> list[Path]:
        """Files of the finished parts, in order."""
        return [self.path / part["file"] for part in self.info["parts"]]

    @property
    def footprint_bytes(self) -> int:
        """Bytes of the distinct 4 KiB pages touched; ``pages_by_kinds`` counts each page once."""
        return _PAGE * int(sum(self.info["pages_by_kinds"].values()))

    def __fspath__(self) -> str:
        """The folder's path: a trace can be given wherever its path can."""
        return str(self.path)

    def __len__(self) -> int:
        """Records in all parts."""
        return int(self.info["records"])

    def arrow(self) -> pyarrow.dataset.Dataset:
        """A dataset of the parts, in order, which are read on demand.

        Columns: ``addr`` uint64, ``kind`` dictionary of string (plain string in parts that another
        tool rewrote with a delta encoding), ``size`` uint16, ``thread`` and ``instr`` uint32.

        Raises:
            NearfarError: a part cannot be read.
        """
        import pyarrow
        import pyarrow.dataset as ds

        if not self.parts:
            kind = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
            types = [pyarrow.uint64(), kind, pyarrow.uint16(), pyarrow.uint32(), pyarrow.uint32()]
            fields = [
                pyarrow.field(name, kind, nullable=False)
                for name, kind in zip(COLUMNS, types, strict=True)
            ]
            return ds.dataset(pyarrow.schema(fields).empty_table())
        with _reading(self.path):
            # pyarrow cannot read delta-encoded strings as a dictionary.
            delta = any("DELTA" in encoding for encoding in self._kind_encodings())
            options = ds.ParquetReadOptions(dictionary_columns=[] if delta else ["kind"])
            return ds.dataset(
                [str(part) for part in self.parts],
                format=ds.ParquetFileFormat(
                    read_options=options,
                    default_fragment_scan_options=ds.ParquetFragmentScanOptions(
                        page_checksum_verification=True
                    ),
                ),
            )

    def _kind_encodings(self) -> set[str]:
        import pyarrow.parquet as pq

        encodings: set[str] = set()
        for part in self.parts:
            metadata = pq.read_metadata(part)
            column = metadata.schema.names.index("kind")
            for group in range(metadata.num_row_groups):
                encodings.update(metadata.row_group(group).column(column).encodings)
        return encodings

    def table(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Read every record into memory: about 20 bytes each.

        Args:
            columns: names of the columns to read; all by default.

        Raises:
            NearfarError: there is no such column, or a part cannot be read.
        """
        wanted = _columns(columns)
        dataset = self.arrow()
        with _reading(self.path):
            return dataset.to_table(columns=wanted)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """The records in order, in batches, which need little memory.

        Args:
            columns: names of the columns to read; all by default.

        Raises:
            NearfarError: there is no such column, or a part cannot be read.
        """
        wanted = _columns(columns)
        dataset = self.arrow()
        with _reading(self.path):
            # A batch can be as large as a row group, so the readahead is small.
            scanner = dataset.scanner(columns=wanted, batch_readahead=2, fragment_readahead=1)
            batches = iter(scanner.to_batches())
        while True:
            with _reading(self.path):
                batch = next(batches, None)
            if batch is None:
                return
            if batch.num_rows:
                yield batch

    def polars(self) -> polars.LazyFrame:
        """A lazy frame of the parts, in order.

        Raises:
            NearfarError: Polars is not installed (exit code 3).
        """
        try:
            import polars
        except ImportError:
            raise NearfarError(
                "polars: is not installed; install it with `pip install 'nearfar[polars]'`", 3
            ) from None
        if not self.parts:
            frame = polars.from_arrow(self.table())
            assert isinstance(frame, polars.DataFrame)
            return frame.with_columns(polars.col("kind").cast(polars.String)).lazy()
        return polars.scan_parquet(self.parts)

    @property
    def regions(self) -> pyarrow.Table:
        """The events of the address space, one per row; empty if unknown.

        Columns: ``at`` (records before it), ``thread``, ``event``, ``addr``, ``length``,
        ``offset``, ``prot``, ``name``; and of schema 2 ``device``, ``inode``, ``to``.

        Raises:
            NearfarError: the file cannot be read.
        """
        import pyarrow
        import pyarrow.parquet as pq

        path = self.path / "regions.parquet"
        if not path.exists():
            long, text = pyarrow.uint64(), pyarrow.string()
            types = [long, pyarrow.uint32(), text, long, long, long, text, text, long, long, long]
            names = ["at", "thread", "event", "addr", "length", "offset", "prot", "name"]
            names += ["device", "inode", "to"]
            return pyarrow.schema(list(zip(names, types, strict=True))).empty_table()
        with _reading(path):
            return pq.read_table(path, page_checksum_verification=True)

    def facts(self) -> list[tuple[str, str]]:
        """The scalar properties of the trace, as names and values."""
        source = self.info["source"]
        rows = facts({**self.info, "footprint_bytes": self.footprint_bytes})
        return [("source", f"{source['kind']} {source['detail']}".strip()), *rows]

    def __repr__(self) -> str:
        """The path and the main numbers."""
        info = self.info
        end = "" if info["complete"] else ", incomplete"
        pages, threads = self.footprint_bytes // _PAGE, len(info["threads"])
        return (
            f"<nearfar.Trace {str(self.path)!r}: {len(self):,} records, "
            f"{threads} thread{'s' * (threads != 1)}, {pages:,} pages of 4 KiB{end}>"
        )

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in self.facts()
        )
        return f"<table><caption>{escape(str(self.path))}</caption>{rows}</table>"


def open(path: str | PathLike[str]) -> Trace:
    """Open the trace folder ``path``; checks that every part exists and is not truncated.

    Raises:
        NearfarError: no such trace, not a trace, a newer schema, an inconsistent ``trace.json``, or
            a damaged part.
    """
    folder = Path(path)
    return Trace(folder, json.loads(_engine.trace_open(folder)))


def facts(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The scalar values of ``trace.json`` or of :func:`nearfar.info.info`, as names and values."""
    rows = [("records", units.count(info["records"]))]
    if info.get("instructions"):
        rows.append(("instructions", units.count(info["instructions"])))
    rows.append(("footprint", units.size(info["footprint_bytes"])))
    if info.get("peak_resident_bytes") is not None:
        rows.append(("peak resident", units.size(info["peak_resident_bytes"])))
    if info.get("filter", "none") != "none":
        rows.append(("view", units.clean(info["view"])))
    rows.append(("threads", str(len(info.get("threads") or []))))
    total = float(info["records"]) or 1.0
    for kind, number in (info.get("records_by_kind") or {}).items():
        share = units.percent(number / total)
        rows.append((units.clean(kind), f"{units.count(number)} ({share})"))
    if info.get("complete") is False:
        why = units.clean(info.get("incomplete_reason") or "the capture was cut short")
        rows.append(("incomplete", why))
    return rows


def _columns(columns: Sequence[str] | None) -> list[str]:
    wanted = list(COLUMNS if columns is None else columns)
    for name in wanted:
        if name not in COLUMNS:
            raise NearfarError(f"columns: no column {name!r}; choose from {', '.join(COLUMNS)}")
    return wanted


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of pyarrow into a NearfarError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError) as error:
        why = (str(error).splitlines() or ["cannot be read"])[0]
        raise NearfarError(
            f"{path}: truncated or damaged: {why}; capture or import the trace again"
        ) from None
