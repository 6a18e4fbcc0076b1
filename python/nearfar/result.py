"""What the result of every study can do: JSON, tables, a chart, a folder on disk."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from nearfar.errors import NearfarError
from nearfar.output import claimed
from nearfar.schema import Rows

#: Lines of what ``repr`` gives, at most.
LINES: Final = 20
#: The file that makes a folder a result.
RUN: Final = "run.json"


def load(entry: str) -> Any:
    """The object that ``module:name`` names."""
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def read_table(path: Path) -> Any:
    """Read a Parquet file as a ``pyarrow.Table``.

    In this thread alone: a thread of Arrow's that still has the Python file when the interpreter
    ends takes the process down with it.

    Raises:
        pyarrow.ArrowException, OSError: it cannot be read.
    """
    import pyarrow.parquet

    # Arrow takes no names that are no text.
    with path.open("rb") as file, pyarrow.parquet.ParquetFile(file, pre_buffer=False) as parquet:
        return parquet.read(use_threads=False)


class Result:
    """Base of the results: a study adds fields, ``table`` and what it is asked."""

    # A result names what shows it as text, `module:name`, loaded when one asks for it. Reports are
    # made from results, so an import here would close a circle, and be slow.
    #: The function that returns what a terminal shows; None for the first rows.
    shown: ClassVar[str | None] = None
    #: The class of the page (:class:`nearfar.report.html.page.Page`); None where there is none.
    page: ClassVar[str | None] = None
    #: The function that draws the chart; None where there is none.
    chart: ClassVar[str | None] = None

    #: Its fields that ``to_dict`` has.
    plain: ClassVar[tuple[str, ...]] = ("run", "rows")

    def __init_subclass__(cls, **more: Any) -> None:
        """Keep dataclasses, lists and dicts from printing all that they hold."""
        super().__init_subclass__(**more)
        cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """The answer and a small table, as a terminal of 80 columns shows them."""
        more = f"{self._made()}: .table, .to_polars(), .plot()"
        printed = load("nearfar.report.tables:text")(self.view(), 80, elsewhere=".table has them")
        lines = printed.splitlines()
        if len(lines) >= LINES:
            lines = [*lines[: LINES - 2], "..."]
        return "\n".join([*lines, more])

    def view(self) -> Any:
        """What a terminal shows of it: a renderable of Rich."""
        if self.shown is not None:
            return load(self.shown)(self)
        return load("nearfar.report.tables:first_rows")(self.table)

    def _made(self) -> str:
        """Its class, and how large its table is."""
        table = self.table
        return f"{self._name}, {table.num_rows:,} rows, {table.num_columns} columns"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        return {name: getattr(self, name) for name in self.plain}

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Everything as JSON text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def to_arrow(self) -> Any:
        """The rows as a ``pyarrow.Table``: the same as :attr:`table`."""
        return self.table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows for any library that reads Arrow: ``polars.DataFrame(result)``, DuckDB, ..."""
        return self.table.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """The rows as a pandas data frame."""
        try:
            return self.table.to_pandas()
        except ImportError:
            raise NearfarError("pandas: not installed; pip install pandas", 3) from None

    def to_polars(self) -> Any:
        """The rows as a Polars data frame."""
        try:
            import polars
        except ImportError:
            raise NearfarError("polars: not installed; pip install 'nearfar[polars]'", 3) from None
        return polars.from_arrow(self.table)

    def plot(self) -> Any:
        """The first chart of the study's page, as an ``altair.Chart``.

        Raises:
            NearfarError: there is nothing to draw.
        """
        if self.chart is None:
            raise NearfarError(f"plot: {self._name} has no chart; use .table or .to_polars()")
        return load(self.chart)(self)

    def html(self) -> str:
        """A self-contained page of the result, to be written as UTF-8.

        Raises:
            NearfarError: the study has no page, or the result has more rows than a page takes.
        """
        return self._html()

    def _html(self, **more: Any) -> str:
        """The page, with what it shows besides the result."""
        if self.page is None:
            raise NearfarError(f"html: {self._name} has no page of its own; use .plot() or .table")
        return str(load(self.page)(self, **more).html())

    @property
    def _name(self) -> str:
        return type(self).__name__

    def _repr_html_(self) -> str:
        """Show the answer, its tables and the chart in a notebook."""
        try:
            chart = self.plot()
        except NearfarError:  # nothing to draw
            chart = None
        more = f"{self._made()}: .table has all"
        return str(load("nearfar.report.notebook:html")(self.view(), chart, more))


class FolderResult(Result):
    """A result that can be kept as a folder."""

    #: What the columns of ``table`` mean; by question, for a study that has several.
    columns: ClassVar[Rows | Mapping[str, Rows]]
    rows: Sequence[Mapping[str, Any]]

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``, without lists."""
        columns: Any = self.columns
        return columns.table(self.rows)

    @classmethod
    def restore(cls, run: Any, tables: Mapping[str, Any]) -> Self:
        """Read back what :meth:`write` wrote, from ``run.json`` and the folder's tables.

        Raises:
            KeyError: something is missing.
        """
        raise NotImplementedError

    def write(
        self,
        folder: str | Path,
        *,
        force: bool = False,
        texts: Mapping[str, str] | None = None,
    ) -> Path:
        """Write ``result.parquet``, further tables and ``run.json``, whole or not at all.

        Args:
            folder: to be made.
            force: replace an earlier result; it is there until this one takes its place.
            texts: further files, by name.

        Raises:
            NearfarError: there is something already, or it cannot be written.
        """
        import pyarrow.parquet

        path = Path(folder)
        with claimed(path, force=force, holds=RUN) as temporary:
            for name, table in self._tables().items():
                # Arrow takes no names that are no text.
                with (temporary / f"{name}.parquet").open("wb") as file:
                    pyarrow.parquet.write_table(table, file, compression="zstd")
            run = json.dumps(self._run(), indent=1) + "\n"
            for name, text in {**(texts or {}), RUN: run}.items():
                (temporary / name).write_text(text, encoding="utf-8", errors="backslashreplace")
        return path

    def _tables(self) -> Mapping[str, Any]:
        """The tables of the folder by file name."""
        return {"result": self.table}

    def _run(self) -> Mapping[str, Any]:
        """What ``run.json`` holds."""
        raise NotImplementedError
