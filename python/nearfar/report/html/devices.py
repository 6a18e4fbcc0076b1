"""The page of ``nearfar devices``: memory needed and slowdown of each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from nearfar import units
from nearfar.declared import devices as declared
from nearfar.declared import paging as paging_declared
from nearfar.devices import DevicesResult
from nearfar.memory_curve import slowdown
from nearfar.report import devices as texts
from nearfar.report import palette
from nearfar.report.html import page

_GLOSSARY: Final = (
    ("needed", "The least memory with which the program is at most as much slower as is accepted."),
    ("on device", "What does not fit the memory that is needed."),
    ("peak resident set", "The largest memory of the program at any time, in pages of 4 KiB."),
    ("page fault", "The kernel reads the page from the device."),
    ("load", "The processor reads the device as memory."),
)
#: Parts of the memory that is needed, with the colour of each.
_PARTS: Final = {"needed_bytes": "blue", "device_bytes": "orange"}


class DevicesPage(page.Page[DevicesResult]):
    """Devices of one program and one host."""

    kicker = "nearfar: devices"
    title = "Devices below memory - nearfar"
    glossary = _GLOSSARY

    def __init__(self, result: DevicesResult) -> None:
        """Write the headings."""
        super().__init__(result, result.run)
        self.heading = f"What to put below memory? <code>{page.name(result.run['trace'])}</code>"
        self.headline, *self.more = [*texts.answer(result), *texts.compressed(result.rows)]

    def _sections(self) -> list[str]:
        rows = self.result.rows
        limit = units.percent(slowdown(self.result.run, paging_declared.OPTIONS))
        largest = max((row["slowdown"] or 0.0 for row in rows), default=0.0) or 1.0
        whole = max(row["needed_bytes"] + row["device_bytes"] for row in rows)

        def needed(row: declared.Row) -> tuple[str, list[tuple[float, str]]]:
            parts = [(row[name] / whole, colour) for name, colour in _PARTS.items()]  # type: ignore[literal-required]
            return units.size(row["needed_bytes"]), parts

        def slower(row: declared.Row) -> tuple[str, list[tuple[float, str]]]:
            share = row["slowdown"]
            if share is None:
                return "does not fit", []
            return units.percent(share), [(max(share, 0.0) / largest, "vermillion")]

        heads = ((palette.OKABE_ITO[colour], declared.ROWS.head(name))
                 for name, colour in _PARTS.items())  # fmt: skip
        with_ = units.size(rows[0]["memory_bytes"])
        return [
            page.section("needed", f"Memory for at most {limit} slowdown",
                         page.legend(heads) + self._bars(needed)),
            page.section("slowdown", f"Slowdown with {with_} of memory", self._bars(slower)),
            page.section("numbers", "The numbers", self._table(), wide=True),
        ]  # fmt: skip

    def _bars(self, bar: Callable[[declared.Row], tuple[str, list[tuple[float, str]]]]) -> str:
        """A bar for each device: what it says, and its parts as shares of the largest."""
        body = ""
        for row in self.result.rows:
            value, parts = bar(row)
            label = f"{row['storage']}: {value}"
            spans = "".join(
                f'<span style="width:{100 * share:.3f}%;background:{palette.OKABE_ITO[colour]}">'
                "</span>"
                for share, colour in parts
            )
            body += (
                f'<div class="ssd-bar"><span>{page.text(page.typeset(label))}</span>'
                f'<div aria-hidden="true">{spans}</div></div>'
            )
        return body

    def _table(self) -> str:
        names, rows = texts.cells(self.result.rows)
        cells = [[page.text(page.typeset(cell)) for cell in row] for row in rows]
        return page.table(names, cells, "Devices below memory")
