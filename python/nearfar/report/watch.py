"""The memory that a running program needs, as text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.text import Text

from nearfar import units
from nearfar.declared import watch as declared
from nearfar.report.fitted import labelled_sentences
from nearfar.report.size import limits, swapped
from nearfar.watch import WatchResult
from nearfar.watch.curve import of_windows
from nearfar.watch.live import Looks
from nearfar.watch.samples import Watched

if TYPE_CHECKING:
    from nearfar.watch import Plan


#: The live view shows the memory used within time windows of about these lengths, in seconds, and
#: within the longest observed one.
_WINDOWS: Final = (0.1, 1.0, 10.0)


def view(result: WatchResult) -> RenderableType:
    """The lines of the answer."""
    return labelled_sentences(lines(result.rows[0]))


class Live:
    """The live view of a target: its present memory use, and the last answer.

    Attributes:
        plan: the target, and how it is watched.
        answer: the last answer, if there is one.
    """

    def __init__(self, plan: Plan) -> None:
        """Start the clock of the first answer."""
        self.plan = plan
        self.answer: declared.Row | None = None
        self._looks, self._seen = Looks(plan.target), Watched()
        self._began = time.monotonic()

    def see(self, seen: Watched) -> None:
        """Replace the observations since the last answer."""
        if seen is not self._seen:
            self._seen, self._began = seen, time.monotonic() - seen.seconds

    def view(self) -> RenderableType:
        """The view at this moment."""
        size, seen, look = units.size, self._seen, self._looks.look()
        pairs = [("answer", "none yet" if self.answer is None else line(self.answer))]
        if seen.most:
            text = size(round(seen.last.resident))
            text += f", {size(round(seen.last.swapped))} in swap" if seen.last.swapped else ""
            pairs.append(("resident", text))
        sets = _sets(seen)
        if sets:
            pairs.append(("used in", "; ".join(f"{t:.2g} s: {size(round(b))}" for t, b in sets)))
        if look.minor is not None and look.major is not None:
            text = f"{units.digits(look.major)}/s read from swap or files, "
            pairs.append(("faults", f"{text}{units.digits(look.minor)}/s others"))
        if look.stalled is not None:
            of = "" if look.alone else " (the whole machine)"
            text = f"waiting for memory {units.percent(look.stalled)} of the last 10 s{of}"
            pairs.append(("pressure", text))
        name = units.clean(self.plan.target.name)
        head = f"{name}, {_processes(look.processes)}; {self.plan.method}; next answer in "
        head += units.wait(self.plan.seconds - (time.monotonic() - self._began))
        return Group(Text(head, style="bold"), labelled_sentences(pairs))


def _sets(seen: Watched) -> list[tuple[float, float]]:
    """Lengths of windows in seconds, and their mean working sets in bytes, so far."""
    means = of_windows(list(map(list, seen.cycles)))
    if not means:
        return []
    near = [min(means, key=lambda mean: abs(mean.seconds - want)) for want in _WINDOWS]
    return [(m.seconds, m.anonymous + m.file) for m in dict.fromkeys([*near, means[-1]])]


def line(row: declared.Row) -> str:
    """The answer in a line."""
    size = units.size
    text = f"memory {size(row['memory_bytes'])} ({size(row['low_bytes'])} to "
    text += f"{size(row['high_end_bytes'])}) of {size(row['resident_bytes'])}"
    if row["high_bytes"] is not None:
        text += f", MemoryHigh {size(row['high_bytes'])}"
    return text if row["max_bytes"] is None else f"{text}, MemoryMax {size(row['max_bytes'])}"


def lines(row: declared.Row) -> list[tuple[str, str]]:
    """The answer: labels and sentences. The column ``vm`` names the watched program."""
    size = units.size
    memory = f"{size(row['memory_bytes'])} ({size(row['low_bytes'])} to "
    memory += f"{size(row['high_end_bytes'])}): "
    if row["memory_bytes"] < row["resident_bytes"]:
        memory += f"{units.percent(row['slowdown'])} slower than with all of "
        memory += f"{size(row['resident_bytes'])}, with {units.digits(row['faults'])} faults/s"
    else:
        memory += "all that is resident"
    if row["locked_bytes"]:
        memory += f"; {size(row['locked_bytes'])} is locked"
    parts = f"{size(row['anonymous_bytes'])} of it anonymous, {size(row['file_bytes'])} files"
    none = "none; all anonymous memory has to fit"
    return [
        ("memory", f"{memory}; {parts}."),
        *([("tried", tried)] if (tried := _tried(row)) else []),
        ("swap", f"{none if row['storage'] is None else swapped(row)}."),
        ("limits", limits(row)),
        (
            "based on",
            f"{row['vm']}, {_processes(row['processes'])}, watched for {row['seconds']:.3g} s by "
            f"{row['why_method']}; times of the machine {row['machine']}.",
        ),
        ("cost", f"{units.percent(row['cost'])} of a processor."),
        ("risk", "covers only the time watched; no page size was measured."),
    ]


def _tried(row: declared.Row) -> str:
    """What ``--confirm`` measured, and the prediction; empty without it."""
    memory, why = row["tried_bytes"], row["tried_stopped"]
    stalled, faults = row["tried_slowdown"], row["tried_faults"]
    if memory is None or stalled is None or faults is None:
        return f"no, because {why}." if why else ""
    text = f"with {units.size(memory)} it waited for memory {units.percent(stalled)} of the time, "
    text += f"with {units.digits(faults)} faults/s; predicted {units.percent(row['slowdown'])} and "
    text += f"{units.digits(row['faults'])} faults/s."
    return text if why is None else f"not held, because {why}: {text}"


def _processes(count: int) -> str:
    return "which has ended" if count == 0 else f"{count} process{'es' if count > 1 else ''}"
