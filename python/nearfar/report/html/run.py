"""The page of ``nearfar run``: the slowdown, memory by tier, counts of events."""

from __future__ import annotations

from typing import Final

from nearfar import units
from nearfar.declared import run as declared
from nearfar.live import counters
from nearfar.live_result import Outcome
from nearfar.report.cells import cell
from nearfar.report.html import page

_GLOSSARY = (
    ("fast memory", "Memory of the program within the budget of --fast."),
    ("far tier", "Where the other pages are: compressed, in a file, on another node."),
    ("promotion", "A page moves from the far tier to fast memory."),
    ("demotion", "A page moves to the far tier: copied, or remapped to its shadow."),
    ("shadow", "A promoted page's copy in the far tier, kept so that it need not be copied back."),
    ("bare", "The same program without nearfar."),
)
#: Parts of the memory, with the colour of each.
_MEMORY: Final = (
    ("fast_bytes", "blue"),
    ("far_pages_bytes", "orange"),
    ("far_bytes", "vermillion"),
    ("unmanaged_bytes", "purple"),
)
#: Kinds of time, with the colour of each.
_TIMES: Final = (("seconds", "blue"), ("alone_seconds", "green"), ("manager_seconds", "orange"))


class RunPage(page.Page[Outcome]):
    """One run of a program in two tiers."""

    glossary = _GLOSSARY

    def __init__(self, result: Outcome) -> None:
        """Write the headings."""
        super().__init__(result, result.run)
        self.row = result.rows[0]
        command = units.clean(self.row["command"])
        self.title = f"{command} - nearfar run"
        self.kicker = f"nearfar: run, on Linux {result.run.get('kernel', '')}"
        self.heading = f"<code>{page.text(command)}</code> in two tiers"
        self.headline, row = _headline(result), self.row
        self.more = [
            f"Policy {row['policy']}, fast memory {result.options['fast']} "
            f"({units.size(row['budget_bytes'])}), far tier {row['far']}.",
            *([f"The program was ended: {row['why']}"] if row["why"] else []),
            # The first line has what the headline says.
            *str(result).splitlines()[1:],
        ]

    def _sections(self) -> list[str]:
        return [
            page.section("time", "Time", self._bars(_TIMES)),
            page.section("memory", "Peak memory of each kind", self._bars(_MEMORY)),
            page.section("counts", "What happened", self._counts(), wide=True),
        ]

    def _bars(self, parts: tuple[tuple[str, str], ...]) -> str:
        """Bars of the columns that have a value, to one scale."""
        values: dict[str, float | None] = dict(self.row)  # type: ignore[arg-type]
        known = [(declared.ROWS.column(name), value, colour) for name, colour in parts
                 if (value := values[name]) is not None]  # fmt: skip
        longest = max(value for _, value, _ in known) or 1.0
        return "".join(
            page.bar(f"{column.head}: {cell(column, value)}", [(value / longest, colour)],
                     column.what)
            for column, value, colour in known
        )  # fmt: skip

    def _counts(self) -> str:
        """The counters that are not 0, with their rates."""
        seconds = self.row["seconds"] or 1.0
        rows = [
            [
                page.text(name.removesuffix("_ns").replace("_", " ")),
                page.prose(units.duration(count)) if name.endswith("_ns") else units.count(count),
                "" if name.endswith("_ns") else _rate(count / seconds),
                page.text(what),
            ]
            for name, what in counters().items()
            if (count := self.result.counters[name])
        ]  # fmt: skip
        return page.table(["event", "count", "per second", "meaning"], rows, "Events that occurred")


def _headline(result: Outcome) -> str:
    """The slowdown, if it was measured, and the peak memory of both tiers."""
    time = f"{result.seconds:.2f} s"
    if result.slowdown is not None:
        bare = f"{result.alone_seconds:.2f} s"
        text = f"{units.digits(result.slowdown, 2)} times as long as without nearfar: "
        text += f"{time} instead of {bare}"
    elif result.alone_seconds is not None:
        text = f"{time}; without nearfar it ended with exit code {result.alone_exit_code}"
    else:
        text = f"{time}; --alone measures the slowdown"
    fast, far = units.size(result.fast_bytes), units.size(result.far_pages_bytes)
    return f"{text}. At most {fast} in fast memory and {far} in the far tier."


def _rate(rate: float) -> str:
    return units.count(round(rate)) if rate >= 100 else units.digits(rate)
