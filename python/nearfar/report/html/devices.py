"""The page of ``nearfar devices``: memory needed and slowdown of each device."""

from __future__ import annotations

from typing import Final

from nearfar import units
from nearfar.declared import devices as declared
from nearfar.declared import paging as paging_declared
from nearfar.devices import DevicesResult
from nearfar.memory_curve import allowed_slowdown
from nearfar.report import devices as texts
from nearfar.report import palette
from nearfar.report.html import page

_GLOSSARY: Final = (
    ("needed", "The least memory with which the slowdown is at most `--slowdown`."),
    ("on device", "The part of the program on the device when it has only the needed memory."),
    ("peak resident set", "The largest memory of the program at any time, in pages of 4 KiB."),
    ("page fault", "The kernel reads the page from the device."),
    ("load", "The processor reads the device as memory."),
)
#: Parts of a bar, with the colour of each.
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
        limit = units.percent(allowed_slowdown(self.result.run, paging_declared.OPTIONS))
        largest_slowdown = max((row["slowdown"] or 0.0 for row in rows), default=0.0) or 1.0
        largest_bytes = max(row["needed_bytes"] + row["device_bytes"] for row in rows)

        def needed(row: declared.Row) -> str:
            parts = [(row[name] / largest_bytes, colour) for name, colour in _PARTS.items()]  # type: ignore[literal-required]
            return page.bar(f"{row['storage']}: {units.size(row['needed_bytes'])}", parts)

        def slower(row: declared.Row) -> str:
            share = row["slowdown"]
            if share is None:
                return page.bar(f"{row['storage']}: does not fit", [])
            label = f"{row['storage']}: {units.percent(share)}"
            # Linux's replacement is not exact LRU: less memory may even take less time.
            return page.bar(label, [(max(share, 0.0) / largest_slowdown, "vermillion")])

        heads = ((palette.OKABE_ITO[colour], declared.ROWS.head(name))
                 for name, colour in _PARTS.items())  # fmt: skip
        memory = units.size(rows[0]["memory_bytes"])
        table = page.prose_table(*texts.cells(rows), "Devices below memory")
        return [
            page.section("needed", f"Memory for at most {limit} slowdown",
                         page.legend(heads) + "".join(map(needed, rows))),
            page.section("slowdown", f"Slowdown with {memory} of memory",
                         "".join(map(slower, rows))),
            page.section("numbers", "The numbers", table, wide=True),
        ]  # fmt: skip
