"""The result of a run under ``nearfar run``: one row, its record, a summary in lines."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, Final, cast

from nearfar import _engine
from nearfar.columns import byte_size, integer, number, text
from nearfar.declared import run as declared
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows
from nearfar.strict import Json
from nearfar.units import duration, size

if TYPE_CHECKING:
    import pyarrow
    from rich.text import Text

#: Share of the budget by which resident memory may exceed it without an explanation.
_ABOVE: Final = 0.05
#: Far tiers that compress.
_COMPRESSES: Final = ("zstd", "lz4")

#: The row of a run; ``make declared`` writes it as ``nearfar.declared.run``.
TABLES: Final = {
    "rows": Rows(
        columns=(
            text("command", "Program and arguments."),
            text("policy", "Tiering policy."),
            text("knobs", "Knobs of the policy that were set."),
            text("far", "Far tier."),
            byte_size("budget_bytes", "Fast memory of each process.", title="budget"),
            byte_size(
                "far_size_bytes",
                "Maximum memory of each process in the far tier, before compression.",
                title="far size",
            ),
            integer(
                "far_latency_ns",
                "Minimum time to move a page to or from the far tier.",
                "ns",
                title="far latency",
            ),
            text(
                "epf",
                "Value of --epf: when threads sleep, instead of busy-waiting, for a far page.",
            ),
            number("seconds", "Wall time of the program, from start to end.", "s", title="time"),
            number(
                "user_seconds", "User CPU time of the program and its managers.", "s", title="user"
            ),
            number(
                "system_seconds",
                "System CPU time of the program and its managers.",
                "s",
                title="system",
            ),
            number(
                "manager_seconds",
                "CPU time of the managers, included in user and system time; without up to 40 ms "
                "at the end of each manager.",
                "s",
                title="manager",
            ),
            integer("exit_code", "Exit code of the program; 128 + N if signal N ended it."),
            text("why", "Why nearfar ended the program; null if it did not.", nullable=True),
            integer("images", "Number of managed process images; each `exec` starts another."),
            byte_size("fast_bytes", "Peak fast memory, sampled.", title="fast"),
            byte_size(
                "far_pages_bytes",
                "Peak memory in the far tier before compression, with shadows (copies of promoted "
                "pages).",
                title="far",
            ),
            byte_size(
                "window_bytes",
                "Peak size of the window: far pages mapped without a promotion.",
                title="window",
            ),
            byte_size(
                "far_bytes", "Peak size of the far tier, after compression.", title="far takes"
            ),
            number(
                "alone_seconds",
                "Wall time without nearfar; null unless `--alone` is given or `--fast` is a share.",
                "s",
                nullable=True,
                title="bare",
            ),
            integer(
                "alone_exit_code",
                "Exit code of the program without nearfar; null without such a run.",
                nullable=True,
            ),
            byte_size(
                "alone_bytes",
                "Peak private memory of the program's largest process without nearfar; null "
                "without such a run.",
                nullable=True,
                title="bare memory",
            ),
            number(
                "slowdown",
                "`seconds` / `alone_seconds`; null without `alone_seconds`, or if exit codes "
                "differ.",
                nullable=True,
            ),
            byte_size(
                "resident_bytes",
                "Peak private resident memory of all processes, sampled.",
                nullable=True,
                title="resident",
            ),
            integer(
                "resident_processes",
                "Managed processes at the peak of `resident_bytes`.",
                nullable=True,
            ),
            byte_size(
                "unmanaged_bytes",
                "Part of `resident_bytes` in mappings that are not managed.",
                nullable=True,
                title="not managed",
            ),
            byte_size(
                "held_bytes",
                "Part of `resident_bytes` that cannot move: locked, pinned by I/O, or shared with "
                "a child.",
                nullable=True,
                title="held",
            ),
            *(integer(name, what) for name, what in _engine.live_counters()),
        ),
        keys=(
            "command",
            "policy",
            "knobs",
            "far",
            "budget_bytes",
            "far_size_bytes",
            "far_latency_ns",
            "epf",
        ),
        metrics={
            name: "less"
            for name in (
                "seconds",
                "user_seconds",
                "system_seconds",
                "manager_seconds",
                "faults",
                "promotions",
                "hint_faults",
                "shadow_faults",
                "aborts",
                "window_faults",
                "far_loads",
                "far_stores",
                "fast_bytes",
                "far_bytes",
                "slowdown",
                "resident_bytes",
            )
        },
    ),
}


class LiveRun(Run, total=False):
    """The record of a run, and the kernel's release, because times depend on it."""

    program: list[str]
    kernel: str


def record(
    words: Sequence[str],
    options: Mapping[str, object],
    knobs: Mapping[str, str],
    *,
    alone: bool,
) -> LiveRun:
    """The record of a run of ``words``.

    Args:
        words: program and arguments.
        options: as the engine parsed them.
        knobs: of the policy.
        alone: whether ``--alone`` was given.
    """
    run = provenance("run", options=declared.OPTIONS, values=options)
    if alone:
        run["command"] += " --alone"
        run["options"]["alone"] = True
    for name, value in knobs.items():
        run["command"] += f" --knob {shlex.quote(f'{name}={value}')}"
    run["command"] += f" -- {shlex.join(words)}"
    if knobs:
        run["options"]["knobs"] = dict(knobs)
    return {**run, "program": list(words), "kernel": os.uname().release}


@dataclass(frozen=True)
class Outcome(FolderResult):
    """The result of a run.

    Attributes:
        run: the record of the run: command, options, version, kernel.
        command: program and arguments.
        counters: event counts of all processes, by name (docs/run.md).
        images: process images that were managed; ``execve`` starts another image.
        fast_bytes: peak of fast memory, sampled.
        far_pages_bytes: peak of memory in the far tier before compression, with shadows (copies of
            promoted pages).
        window_bytes: peak size of the window, far memory that was mapped without a promotion.
        far_bytes: peak size of the far tier.
        seconds: wall time.
        user_seconds: processor time of the program and its managers in user mode.
        system_seconds: their processor time in the kernel.
        manager_seconds: the managers' part of both; up to 40 ms at the end of each are missing.
        budget_bytes: fast memory of each process.
        far_size_bytes: maximum memory of each process in the far tier, before compression.
        far_latency_ns: minimum time to move a page to or from the far tier.
        exit_code: of the program; 128 + N if signal N ended it.
        why: why nearfar ended the program, if it did.
        alone_seconds: wall time without nearfar; None unless measured, as are the next two.
        alone_exit_code: exit code without nearfar.
        alone_bytes: peak private memory of the largest process without nearfar.
        resident_bytes: peak private memory (RssAnon) of all processes, sampled; the next three are
            of the same sample.
        resident_processes: managed processes.
        unmanaged_bytes: private memory in mappings that are not managed.
        held_bytes: private memory that could not be moved: locked, held by I/O, or shared with a
            child.
        core_dumped: whether the program left a core file, which lacks pages that were far.
    """

    page = "nearfar.report.html.run:RunPage"
    columns: ClassVar[Rows] = TABLES["rows"]

    run: LiveRun
    command: list[str]
    options: Json  # those of `run`
    counters: dict[str, int]
    images: int
    fast_bytes: int
    far_pages_bytes: int
    window_bytes: int
    far_bytes: int
    seconds: float
    user_seconds: float
    system_seconds: float
    manager_seconds: float
    budget_bytes: int
    far_size_bytes: int
    far_latency_ns: int
    exit_code: int
    why: str | None

    alone_seconds: float | None = None
    alone_exit_code: int | None = None
    alone_bytes: int | None = None
    resident_bytes: int | None = None
    resident_processes: int | None = None
    unmanaged_bytes: int | None = None
    held_bytes: int | None = None
    core_dumped: bool = False

    @property
    def slowdown(self) -> float | None:
        """The time over that without nearfar; None if not measured, or if exit codes differ."""
        if not self.alone_seconds or self.alone_exit_code != self.exit_code:
            return None
        return self.seconds / self.alone_seconds

    @property
    def rows(self) -> list[declared.Row]:  # type: ignore[override]
        """The only row."""
        options = self.run["options"]
        knobs = options.get("knobs", {})
        values = {
            "command": shlex.join(self.run["program"]),
            "policy": options["policy"],
            "knobs": ",".join(f"{name}={value}" for name, value in knobs.items()),
            "far": options["far"],
            "epf": options["epf"],
            **self.counters,
        }
        names = [column.name for column in self.columns.columns]
        row = {name: values[name] if name in values else getattr(self, name) for name in names}
        return [cast("declared.Row", row)]

    def to_dict(self) -> Mapping[str, object]:
        """The result as plain values."""
        return asdict(self)

    def view(self) -> Text:
        """The summary."""
        from rich.text import Text

        return Text(str(self))

    @classmethod
    def restore(cls, run: Json, tables: Mapping[str, pyarrow.Table]) -> Outcome:
        """Read what :meth:`write` wrote."""
        rows = tables["result"].to_pylist()
        if len(rows) != 1:
            raise KeyError("row")
        row = rows[0]
        program, options = [str(word) for word in run["program"]], dict(run["options"])
        knobs = {str(k): str(v) for k, v in dict(options.get("knobs", {})).items()}
        counters = {name: row.pop(name) for name, _ in _engine.live_counters()}
        # Columns that are in the record too, or computed; older versions have no slowdown.
        for name in ("command", "policy", "knobs", "far", "epf", "slowdown"):
            row.pop(name, None)
        options |= {name: str(options[name]) for name in ("policy", "far", "epf")}
        options |= {"knobs": knobs} if knobs else {}
        record = cast("LiveRun", {**run, "program": program, "options": options})
        return cls(command=program, options=options, counters=counters, run=record, **row)

    def __str__(self) -> str:
        """A summary in three to six lines."""
        counters = self.counters
        demoted = counters["demotions_copied"] + counters["demotions_remapped"]
        lines = [
            f"{self._time()}. Peak: {size(self.fast_bytes)} fast, {self._far()}",
            f"Promotions: {counters['promotions']:,} ({counters['shadow_copies']:,} kept a "
            f"shadow). Demotions: {demoted:,} ({counters['demotions_remapped']:,} to their shadow)",
            f"Faults: {counters['faults']:,} (hint {counters['hint_faults']:,}, shadow "
            f"{counters['shadow_faults']:,}, let through {counters['window_faults']:,}). "
            f"Aborted copies: {counters['aborts']:,}",
        ]
        if counters["fetches"]:
            predicted, actual = (
                duration(counters[name] / counters["fetches"])
                for name in ("fetches_predicted_ns", "fetches_ns")
            )
            lines.append(
                f"Waited for the far tier {counters['fetches']:,} times, {actual} each (predicted "
                f"{predicted}): {counters['slept']:,} slept, {counters['stalled']:,} kept a "
                "processor busy"
            )
        if (above := self._above_budget()) is not None:
            lines.append(above)
        if self.core_dumped:
            lines.append("Core file: pages that were far are missing in it, and read as zeros")
        return "\n".join(lines)

    def _time(self) -> str:
        used = f"{self.seconds:.2f} s (CPU {self.user_seconds + self.system_seconds:.2f} s"
        if self.alone_seconds is None:
            return f"{used}; for the slowdown add --alone)"
        if self.slowdown is None:
            alone = f"{self.alone_seconds:.2f} s without nearfar"
            return f"{used}), {alone}, with exit code {self.alone_exit_code}"
        return (
            f"{used}), {self.slowdown:.2g}x as long as without nearfar ({self.alone_seconds:.2f} s)"
        )

    def _far(self) -> str:
        far = f"{size(self.far_pages_bytes)} far"
        name = str(self.options["far"]).partition(":")[0]
        if name in _COMPRESSES and self.far_pages_bytes:
            return f"{far} (compressed to {size(self.far_bytes)})"
        return far

    def _above_budget(self) -> str | None:
        """How far resident memory exceeded the budget, and why; None if not by much."""
        # The number of processes is also known if there was only one process image.
        processes = self.resident_processes or (1 if self.images == 1 else None)
        if self.resident_bytes is None or processes is None:
            return None
        excess = self.resident_bytes - processes * self.budget_bytes
        if excess <= _ABOVE * processes * self.budget_bytes:
            return None
        fast = str(self.options["fast"])
        budget = f"--fast {fast}" + (f" ({size(self.budget_bytes)})" if fast.endswith("%") else "")
        if processes > 1:
            budget = f"{budget} of each of {processes} processes"
        reasons = [
            f"{size(count)} {what}"
            for count, what in (
                (self.unmanaged_bytes, "in mappings that are not managed"),
                (self.held_bytes, "held in memory (locked, in I/O or shared with a child)"),
            )
            if count
        ]
        if self.counters["over_budget"]:
            reasons.append("the far tier was full (give more --far-size)")
        why = f": {', '.join(reasons)}" if reasons else ""
        return f"Resident: {size(self.resident_bytes)}, {size(excess)} above {budget}{why}"
