"""Base classes of results: JSON, tables, a chart, a folder on disk."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from nearfar.errors import NearfarError
from nearfar.output import claimed
from nearfar.schema import Rows
from nearfar.strict import Json

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

#: Maximum number of lines of ``repr``.
LINES: Final = 20
#: The file that marks a folder as a result.
RUN: Final = "run.json"


def load(entry: str) -> Any:
    """The object that ``module:name`` names."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def read_table(path: Path) -> pyarrow.Table:
    """Read a Parquet file.

    Raises:
        pyarrow.ArrowException, OSError: it cannot be read.
    """
    import pyarrow.parquet

    # Arrow opens no path that is not UTF-8. A thread of Arrow that still uses the Python file when
    # the interpreter ends would crash the process, so it reads in this thread.
    with path.open("rb") as file, pyarrow.parquet.ParquetFile(file, pre_buffer=False) as parquet:
        return parquet.read(use_threads=False)


class Result:
    """Base of results; a study adds fields, ``table`` and methods."""

    # Reports import results, so results name report code as `module:name`, imported on use.
    #: The function that renders it for a terminal; None: its first rows.
    shown: ClassVar[str | None] = None
    #: The class of its page (:class:`nearfar.report.html.page.Page`), if it has one.
    page: ClassVar[str | None] = None
    #: The function that draws its chart, if it has one.
    chart: ClassVar[str | None] = None

    #: The fields of :meth:`to_dict`.
    plain: ClassVar[tuple[str, ...]] = ("run", "rows")

    def __init_subclass__(cls) -> None:
        """Replace the long ``repr`` of dataclasses, lists and dicts."""
        super().__init_subclass__()
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """The result as in :meth:`view`, shortened for a terminal of 80 columns."""
        more = f"{self._summary()}: .table, .to_polars(), .plot()"
        printed = load("nearfar.report.tables:text")(self.view(), 80, elsewhere=".table has them")
        lines = printed.splitlines()
        if len(lines) >= LINES:
            lines = [*lines[: LINES - 2], "..."]
        return "\n".join([*lines, more])

    def view(self) -> Any:
        """The result as a terminal shows it: a renderable of Rich."""
        if self.shown is not None:
            return load(self.shown)(self)
        return load("nearfar.report.tables:first_rows")(self.table)

    def _summary(self) -> str:
        table = self.table
        return f"{self._name}, {table.num_rows:,} rows, {table.num_columns} columns"

    def to_dict(self) -> Mapping[str, object]:
        """The result as plain values, as ``--format json`` prints it."""
        return {name: getattr(self, name) for name in self.plain}

    @property
    def table(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table``."""
        raise NotImplementedError

    def to_json(self) -> str:
        """The result as JSON text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def to_arrow(self) -> pyarrow.Table:
        """:attr:`table`."""
        return self.table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows for any library that reads Arrow: ``polars.DataFrame(result)``, DuckDB, ..."""
        return self.table.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> pandas.DataFrame:
        """The rows as a pandas data frame."""
        try:
            return self.table.to_pandas()
        except ImportError:
            raise NearfarError("pandas: not installed; pip install pandas", 3) from None

    def to_polars(self) -> polars.DataFrame:
        """The rows as a Polars data frame."""
        try:
            import polars
        except ImportError:
            raise NearfarError("polars: not installed; pip install 'nearfar[polars]'", 3) from None
        return polars.DataFrame(self.table)

    def plot(self) -> Any:
        """The first chart of the study's page, as an ``altair.Chart``.

        Raises:
            NearfarError: there is nothing to draw.
        """
        if self.chart is None:
            raise NearfarError(f"plot: {self._name} has no chart; use .table or .to_polars()")
        return load(self.chart)(self)

    def html(self) -> str:
        """A self-contained page of the result; write it as UTF-8.

        Raises:
            NearfarError: the study has no page, or the result has too many rows for one.
        """
        return self._html()

    def _html(self, **more: Any) -> str:
        """The page; ``more``: what it shows besides the result."""
        if self.page is None:
            raise NearfarError(f"html: {self._name} has no page of its own; use .plot() or .table")
        return str(load(self.page)(self, **more).html())

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _repr_html_(self) -> str:
        """The result as in :meth:`view`, with its chart, for a notebook."""
        try:
            chart = self.plot()
        except NearfarError:  # it has no chart
            chart = None
        more = f"{self._summary()}: .table has all"
        return str(load("nearfar.report.notebook:html")(self.view(), chart, more))


class FolderResult(Result):
    """A result that can be written to a folder."""

    #: The columns of ``table``; for a study with sub-commands, those of each.
    columns: ClassVar[Rows | Mapping[str, Rows]]
    #: Further tables of the folder: fields that hold rows, and their columns.
    further: ClassVar[Mapping[str, Rows]] = {}
    #: Fields that ``run.json`` holds beside the keys of ``run``.
    in_run: ClassVar[tuple[str, ...]] = ()
    run: Mapping[str, Any]
    rows: Sequence[Mapping[str, object]]

    @property
    def table(self) -> pyarrow.Table:
        """The rows as a ``pyarrow.Table`` with the declared :attr:`columns`."""
        assert isinstance(self.columns, Rows)
        return self.columns.table(self.rows)

    @classmethod
    def restore(cls, run: Json, tables: Mapping[str, pyarrow.Table]) -> Self:
        """Read what :meth:`write` wrote.

        Args:
            run: the content of ``run.json``.
            tables: the tables of the folder, by file name.

        Raises:
            KeyError: something is missing.
        """
        fields: Json = {name: run[name] for name in cls.in_run}
        fields["run"] = {name: value for name, value in run.items() if name not in cls.in_run}
        fields["rows"] = tables["result"].to_pylist()
        return cls(**fields, **{name: tables[name].to_pylist() for name in cls.further})

    def write(
        self,
        folder: str | Path,
        *,
        force: bool = False,
        texts: Mapping[str, str] | None = None,
    ) -> Path:
        """Write ``result.parquet``, further tables and ``run.json``, atomically.

        Args:
            folder: the folder to create.
            force: replace an earlier result, once this one is complete.
            texts: further files, by name.

        Raises:
            NearfarError: the folder exists or cannot be written.
        """
        import pyarrow.parquet

        path = Path(folder)
        with claimed(path, force=force, holds=RUN) as temporary:
            for name, table in self._tables().items():
                # Arrow opens no path that is not UTF-8.
                with (temporary / f"{name}.parquet").open("wb") as file:
                    pyarrow.parquet.write_table(table, file, compression="zstd")
            run = json.dumps(self._run(), indent=1) + "\n"
            for name, text in {**(texts or {}), RUN: run}.items():
                (temporary / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        return path

    def _tables(self) -> Mapping[str, pyarrow.Table]:
        """The tables of the folder, by file name."""
        further = {name: rows.table(getattr(self, name)) for name, rows in self.further.items()}
        return {"result": self.table, **further}

    def _run(self) -> Mapping[str, object]:
        """The content of ``run.json``; seconds have three digits."""
        values = {name: getattr(self, name) for name in self.in_run}
        rounded = {n: round(v, 3) if isinstance(v, float) else v for n, v in values.items()}
        return {**self.run, **rounded}
