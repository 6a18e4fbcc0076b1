"""Tables and sentences that fit the width of the output: nothing is cut, no number is split.

A :class:`Table` that is too wide leaves out columns, from the right, and names them below.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderResult
from rich.containers import Lines
from rich.measure import Measurement
from rich.padding import PaddingDimensions
from rich.style import StyleType
from rich.table import Table as RichTable
from rich.text import Text

from nearfar import units

#: Importance of a column: KEY columns are always shown, DETAIL columns are left out first.
KEY: Final = 2
DETAIL: Final = 0

#: Replaces a space within a number while lines are broken; never printed.
_JOINED: Final = "\ue000"
#: The folders of an absolute path.
_FOLDERS: Final = re.compile(r"(?<![\w.])/(?:[^\s/]+/)+(?=[^\s/])")
#: A width in characters, enough for any table.
_ENDLESS: Final = 100_000


class Prose(Text):
    """Text whose numbers stay on one line, with their units."""

    def wrap(self, console: Console, width: int, **how: Any) -> Lines:
        """Break lines as ``Text`` does, but not within numbers."""
        joined = self._shortened(width)
        joined.plain = units.joined(joined.plain, _JOINED)
        lines = Text.wrap(joined, console, width, **how)
        for line in lines:
            line.plain = line.plain.replace(_JOINED, " ")
        return lines

    def _shortened(self, width: int) -> Text:  # noqa: ARG002
        """A copy to wrap; subclasses may shorten it if it exceeds the width."""
        return self.copy()

    @classmethod
    def of(cls, text: str | Text) -> Self:
        """A copy of the text with its styles."""
        if isinstance(text, str):
            return cls(text)
        prose = cls(text.plain, style=text.style, justify=text.justify, overflow=text.overflow)
        prose.spans[:] = text.spans
        return prose


class PathText(Prose):
    """The name of a region or file; files lose their folders if the text is too wide."""

    def _shortened(self, width: int) -> Text:
        return self.copy() if self.cell_len <= width else Text(_FOLDERS.sub("", self.plain))


def labelled_sentences(pairs: Iterable[tuple[str, str]]) -> RichTable:
    """Labels, each with a sentence next to it, which may take several lines."""
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in pairs:
        grid.add_row(label, Text(units.clean(text)))
    return grid


class Table(RichTable):
    """A table without a frame, with an importance for each column.

    Cells stay on one line; with ``overflow="fold"`` a column of text takes more lines if necessary.
    """

    def __init__(
        self,
        title: str | None = None,
        *,
        collapse_padding: bool = False,
        padding: PaddingDimensions = (0, 1),
    ) -> None:
        """An empty table; arguments as in Rich."""
        super().__init__(
            title=None if title is None else Prose(title),
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
            collapse_padding=collapse_padding,
            padding=padding,
        )
        self._importance: list[int] = []
        self._narrow: list[int] = []

    def add_column(  # type: ignore[override]
        self,
        header: str,
        *,
        importance: int = 1,
        narrow: int = 18,
        justify: JustifyMethod = "left",
        overflow: OverflowMethod = "ellipsis",
        min_width: int | None = None,
        max_width: int | None = None,
        style: StyleType | None = None,
    ) -> None:
        """Add a column.

        Args:
            header, justify, overflow, min_width, max_width, style: as in Rich.
            importance: columns of lowest importance are left out first, from the right; KEY never.
            narrow: a folding column gets narrower than this number of characters only if no other
                column can be left out.
        """
        super().add_column(
            header,
            justify=justify,
            overflow="fold",  # always, so that nothing is cut; ``no_wrap`` decides
            no_wrap=overflow != "fold",
            min_width=min_width,
            max_width=max_width,
            style=style,
        )
        self._importance.append(importance)
        self._narrow.append(narrow)

    def add_columns(
        self,
        headers: Iterable[str],
        *,
        importance: int = 1,
        justify: JustifyMethod = "left",
        overflow: OverflowMethod = "ellipsis",
    ) -> None:
        """Add several columns; arguments as for :meth:`add_column`."""
        for header in headers:
            self.add_column(header, importance=importance, justify=justify, overflow=overflow)

    def add_row(  # type: ignore[override]
        self, *cells: str | Text, style: StyleType | None = None
    ) -> None:
        """Add a row; cells become :class:`Prose`."""
        proses = (cell if isinstance(cell, Prose) else Prose.of(cell) for cell in cells)
        super().add_row(*proses, style=style)

    def add_rows(self, rows: Iterable[Iterable[str | Text]]) -> None:
        """Add several rows."""
        for cells in rows:
            self.add_row(*cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the columns that fit, then the names of the others."""
        widths = [self._column_width(console, index) for index in range(len(self.columns))]
        remaining = list(range(len(self.columns)))
        importance = self._importance
        while (too_wide := self._width(console, remaining, widths) > options.max_width) and (
            removable := [index for index in remaining if importance[index] < KEY]
        ):
            remaining.remove(min(removable, key=lambda index: (importance[index], -index)))
        shown = self._with_columns(remaining)
        if too_wide:
            for column in shown.columns:
                column.no_wrap = False
        yield from RichTable.__rich_console__(shown, console, options)
        removed = [c for index, c in enumerate(self.columns) if index not in remaining]
        if removed:
            names = ", ".join(str(column.header) for column in removed)
            # Set by :func:`nearfar.report.tables.text`.
            elsewhere = getattr(console, "elsewhere", "a wider terminal or --format json has them")
            yield Prose(f"columns left out at this width: {names}; {elsewhere}", style="dim")

    def _with_columns(self, indices: Sequence[int]) -> Table:
        """A copy of the table with only these columns."""
        shown = copy.copy(self)
        shown.columns = [copy.copy(self.columns[index]) for index in indices]
        for index, column in enumerate(shown.columns):
            column._index = index  # noqa: SLF001
        return shown

    def _column_width(self, console: Console, index: int) -> int:
        """The width of a column on one line, in characters; at most ``narrow`` if it folds."""
        column = self.columns[index]
        endless = console.options.update(width=_ENDLESS)
        natural = max(
            Measurement.get(console, endless, cell).maximum
            for cell in (column.header, *column.cells)
        )
        return natural if column.no_wrap else min(natural, self._narrow[index])

    def _width(self, console: Console, indices: Sequence[int], widths: Sequence[int]) -> int:
        """The width of a table of these columns, with the padding between them."""
        shown = self._with_columns(indices)
        for index, column in zip(indices, shown.columns, strict=True):
            column.width = widths[index]
        endless = console.options.update(width=_ENDLESS)
        return RichTable.__rich_measure__(shown, console, endless).minimum
