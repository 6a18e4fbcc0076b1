"""Tables and sentences that fit where they are printed: nothing is cut, no number is split.

A :class:`Table` that is too wide leaves columns out, from the right, and says which below it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any, Final, Self

from rich import box
from rich.console import Console, ConsoleOptions, JustifyMethod, OverflowMethod, RenderResult
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from nearfar import units

#: Importances of columns: without KEY a row says nothing; DETAIL goes first where room is short.
KEY: Final = 2
DETAIL: Final = 0

#: Stands for a space within a number while lines are broken: nothing that is printed has it.
_JOINED: Final = "\ue000"
#: The folders of a path.
_FOLDERS: Final = re.compile(r"(?<![\w.])/(?:[^\s/]+/)+(?=[^\s/])")
#: Wide enough for any table.
_ENDLESS: Final = 100_000


class Prose(Text):
    """Text whose numbers stay on one line, with their units."""

    def wrap(self, console: Console, width: int, **how: Any) -> Any:
        """Break lines as ``Text`` does, but within no number."""
        joined = self.copy()
        joined.plain = units.joined(self.plain, _JOINED)
        lines = Text.wrap(joined, console, width, **how)
        for line in lines:
            line.plain = line.plain.replace(_JOINED, " ")
        return lines

    @classmethod
    def of(cls, text: str | Text) -> Self:
        """The same text, with its styles."""
        if isinstance(text, str):
            return cls(text)
        found = cls(text.plain, style=text.style, justify=text.justify, overflow=text.overflow)
        found.spans[:] = text.spans
        return found


class Places(Prose):
    """Names of places: where room is short, files stand without their folders."""

    def wrap(self, console: Console, width: int, **how: Any) -> Any:
        """Break lines as :class:`Prose` does, after leaving out folders where it must."""
        fits = self.cell_len <= width
        return Prose.wrap(
            self if fits else Places(_FOLDERS.sub("", self.plain)), console, width, **how
        )


class Table(RichTable):
    """A table without a frame whose columns each have an importance.

    Columns that hold numbers or names stay on one line; with ``overflow="fold"`` a column of text
    takes more lines where it must.
    """

    def __init__(self, title: str | None = None, **more: Any) -> None:
        """As Rich's, by default without a frame and with the title to the left."""
        given = {"title_justify": "left", "box": box.SIMPLE_HEAD, "pad_edge": False, **more}
        super().__init__(title=None if title is None else Prose(title), **given)
        self._importance: list[int] = []
        self._narrow: list[int] = []

    def add_column(
        self,
        header: Any = "",
        footer: Any = "",
        *,
        importance: int = 1,
        narrow: int = 18,
        justify: JustifyMethod = "left",
        overflow: OverflowMethod = "ellipsis",
        **more: Any,
    ) -> None:
        """Add a column.

        Args:
            header, footer, justify, overflow, more: as Rich has them.
            importance: the least is left out first, of equal ones the last.
            narrow: characters below which a column that folds does not become narrower while
                another can be left out.
        """
        more.setdefault("no_wrap", overflow != "fold")
        super().add_column(header, footer, justify=justify, overflow="fold", **more)
        self._importance.append(importance)
        self._narrow.append(narrow)

    def add_row(self, *cells: Any, **more: Any) -> None:
        """Add a row; texts become :class:`Prose`."""
        fitted = [
            Prose.of(cell) if isinstance(cell, str | Text) and not isinstance(cell, Prose) else cell
            for cell in cells
        ]
        super().add_row(*fitted, **more)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the columns that fit, and the names of the others."""
        needs = [self._need(console, place) for place in range(len(self.columns))]
        kept = list(range(len(self.columns)))
        ranks = self._importance
        while self._width(console, kept, needs) > options.max_width:
            spare = [place for place in kept if ranks[place] < KEY]
            if not spare:
                break
            kept.remove(min(spare, key=lambda place: (ranks[place], -place)))
        shown = self._of(kept)
        if self._width(console, kept, needs) > options.max_width:
            for column in shown.columns:
                column.no_wrap = False
        yield from RichTable.__rich_console__(shown, console, options)
        left = [place for place in range(len(self.columns)) if place not in kept]
        if left:
            names = ", ".join(str(self.columns[place].header) for place in left)
            elsewhere = getattr(console, "elsewhere", "a wider terminal or --format json has them")
            yield Prose(f"columns left out at this width: {names}; {elsewhere}", style="dim")

    def _of(self, kept: Sequence[int]) -> Table:
        """The same table with these columns alone."""
        shown = copy.copy(self)
        shown.columns = [copy.copy(self.columns[place]) for place in kept]
        for place, column in enumerate(shown.columns):
            column._index = place  # noqa: SLF001
        return shown

    def _need(self, console: Console, place: int) -> int:
        """Characters that a column needs."""
        column = self.columns[place]
        endless = console.options.update(width=_ENDLESS)
        natural = max(
            Measurement.get(console, endless, cell).maximum
            for cell in (column.header, *column.cells)
        )
        return natural if column.no_wrap else min(natural, self._narrow[place])

    def _width(self, console: Console, kept: Sequence[int], needs: Sequence[int]) -> int:
        """Characters that these columns need, with what is between them."""
        shown = self._of(kept)
        for place, column in zip(kept, shown.columns, strict=True):
            column.width = needs[place]
        endless = console.options.update(width=_ENDLESS)
        return RichTable.__rich_measure__(shown, console, endless).minimum
