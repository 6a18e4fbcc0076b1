"""Give one command pages of a size on this machine, put everything back, and say what it did.

>>> print(apply(["sort", "big.txt"], page="64K").plan)      # doctest: +SKIP
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Unpack

from nearfar.apply.measure import Measured, run
from nearfar.apply.setting import BASE, RUNTIME, SYSFS, Change, Plan, applied, plan, restore
from nearfar.declared import apply as declared
from nearfar.errors import NearfarError
from nearfar.result import Result
from nearfar.schema import complete, count, takes
from nearfar.sizes import parse_bytes

__all__ = ["ApplyResult", "Change", "Plan", "apply", "plan", "restore"]

#: Names of the two settings in rows.
_BASE_RUN, _PAGE_RUN = "base", "page"
_COUNTERS: Final = {"huge_allocations": "anon_fault_alloc", "huge_fallbacks": "anon_fault_fallback"}
#: What a summary compares, in this order.
_SUMMARY: Final = (
    "seconds",
    "user_seconds",
    "system_seconds",
    "minor_faults",
    "major_faults",
    "peak_rss_bytes",
    "anon_huge_bytes",
    *_COUNTERS,
)


@dataclass(frozen=True)
class ApplyResult(Result):
    """What would be, or was, done, and what was measured.

    Attributes:
        plan: the page size and the switches of the machine.
        command: program and arguments.
        done: whether the command was run; False is a dry run, without rows.
        rows: one mapping a run (docs/apply.md names the keys).
        summary: one mapping a quantity: medians at ``base`` and ``page``, and their ratio.
        prediction: one mapping a quantity of the trace's study, beside what was measured.
        exit_code: the first of the command's exit codes that is not 0, else 0.
    """

    shown = "nearfar.report.applied:report"

    plan: Plan
    command: list[str]
    done: bool
    rows: list[declared.Row] = field(default_factory=list)
    summary: list[declared.SummaryRow] = field(default_factory=list)
    prediction: list[declared.PredictionRow] = field(default_factory=list)
    exit_code: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, as ``--format json`` prints it."""
        return asdict(self)

    @property
    def table(self) -> Any:
        """The rows as a ``pyarrow.Table``."""
        return declared.ROWS.table(self.rows)


@takes(declared.OPTIONS)
def apply(
    command: Sequence[str],
    *,
    page: str | int,
    stdout: IO[bytes] | int | None = None,
    progress: Callable[[int, int], None] | None = None,
    sysfs: Path = SYSFS,
    runtime: Path = RUNTIME,
    **options: Unpack[declared.Options],
) -> ApplyResult:
    """Run ``command`` with pages of one size, or say what that would change.

    The switches hold for the whole machine while the command runs, and are put back after each run,
    also when this process is killed (:mod:`nearfar.apply.setting`).

    Args:
        command: program (a path, or a name in ``PATH``) and arguments.
        {options}
        stdout: where the command's standard output goes, as for ``subprocess.Popen``.
        progress: called before each run with its number, from 0, and how many there are.
        sysfs: the kernel's folder of switches.
        runtime: folder of the journal and the lock.

    Raises:
        NearfarError: bad input; the kernel cannot set this size; the switches may not be written.
    """
    asked = complete(declared.OPTIONS, options)
    words = [str(word) for word in command]
    if not words:
        raise NearfarError("command: is empty; put the program after `--`")
    if shutil.which(words[0]) is None:
        raise NearfarError(f"{words[0]}: no such program in PATH, or it is not executable")
    repeat = count("--repeat", asked["repeat"], 1)
    threads = count("--threads", asked["threads"], 0, 1024)
    page_bytes = parse_bytes(page, "--page") if isinstance(page, str) else page
    planned = plan(page_bytes, sysfs)
    if not asked["yes"]:
        return ApplyResult(planned, words, done=False)
    trace = asked["trace"]
    expected = None if trace is None else _predict(Path(trace), page_bytes, threads)

    settings = [_BASE_RUN, _PAGE_RUN] if asked["compare"] else [_PAGE_RUN]
    turns = [(turn, setting) for turn in range(1, repeat + 1) for setting in settings]
    # A second run would find what the first has read at its end.
    stdin = None if len(turns) == 1 else subprocess.DEVNULL
    rows: list[declared.Row] = []
    for done, (turn, setting) in enumerate(turns):
        if progress is not None:
            progress(done, len(turns))
        ours = setting == _PAGE_RUN
        sys.stdout.flush()
        with applied(page_bytes, sysfs, runtime) if ours else nullcontext() as made:
            planned = made or planned
            before = counters(page_bytes, sysfs)
            disable = None if made is None else made.disable
            found = run(words, disable=disable, stdin=stdin, stdout=stdout)
            after = counters(page_bytes, sysfs)
        rows.append(_row(turn, setting, page_bytes, found, before, after))
        if found.interrupted:
            break
    summary = _summarize(rows)
    return ApplyResult(
        plan=planned,
        command=words,
        done=True,
        rows=rows,
        summary=summary,
        prediction=[] if expected is None else _beside(expected, summary, page_bytes),
        exit_code=next((row["exit_code"] for row in rows if row["exit_code"]), 0),
    )


def _row(
    turn: int,
    setting: str,
    page_bytes: int,
    found: Measured,
    before: dict[str, int | None],
    after: dict[str, int | None],
) -> declared.Row:
    def counted(name: str) -> int | None:
        first, last = before[name], after[name]
        return None if first is None or last is None else last - first

    return {
        "run": turn,
        "setting": setting,
        "page_bytes": page_bytes,
        "exit_code": found.exit_code,
        "seconds": found.seconds,
        "user_seconds": found.user_seconds,
        "system_seconds": found.system_seconds,
        "minor_faults": found.minor_faults,
        "major_faults": found.major_faults,
        "peak_rss_bytes": found.peak_rss_bytes,
        "anon_huge_bytes": found.anon_huge_bytes,
        "huge_allocations": counted("huge_allocations"),
        "huge_fallbacks": counted("huge_fallbacks"),
    }


def counters(page_bytes: int, sysfs: Path = SYSFS) -> dict[str, int | None]:
    """What the whole machine has had of this page size so far; None where it is not counted."""
    folder = sysfs / f"hugepages-{page_bytes // 1024}kB" / "stats"
    found: dict[str, int | None] = {}
    for name, file in _COUNTERS.items():
        try:
            found[name] = int((folder / file).read_text(encoding="ascii"))
        except OSError:
            found[name] = None
    return found


def _summarize(rows: Sequence[declared.Row]) -> list[declared.SummaryRow]:
    """Medians of each quantity at each setting; where both are there, page / base."""

    def median(quantity: str, setting: str) -> float | None:
        columns: Sequence[Mapping[str, Any]] = rows
        values = [row[quantity] for row in columns if row["setting"] == setting]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    summary: list[declared.SummaryRow] = []
    for quantity in _SUMMARY:
        base, page = median(quantity, _BASE_RUN), median(quantity, _PAGE_RUN)
        ratio = page / base if base and page is not None else None
        summary.append({"quantity": quantity, "base": base, "page": page, "ratio": ratio})
    return summary


def _predict(trace: Path, page_bytes: int, threads: int) -> dict[str, dict[int, float]]:
    """TLB miss rate and faults of the trace at the base page size and at this one.

    With memory for all of it, as the command has when it is run here. What the kernel reads and
    writes in its page cache is no memory of the program and is left out.
    """
    from nearfar.paging import paging

    rows = paging(
        trace,
        page_sizes=sorted({BASE, page_bytes}),
        # The study has no rows of memories of fewer than 8 pages.
        memory=f"100%,{8 * page_bytes}",
        kinds=["load", "store", "fetch"],
        threads=threads,
        view="paper",
    ).rows
    # One row a storage, alike in what is taken here. With room for all, a page faults once.
    return {
        "tlb_miss_rate": {row["page_bytes"]: row["tlb_miss_rate"] for row in rows},
        "fault_rate": {row["page_bytes"]: row["pages"] / row["references"] for row in rows},
        "faults": {row["page_bytes"]: row["pages"] for row in rows},
    }


def _beside(
    expected: dict[str, dict[int, float]],
    summary: Sequence[declared.SummaryRow],
    page_bytes: int,
) -> list[declared.PredictionRow]:
    """The prediction, the measurement it is nearest to, and whether the two can be compared."""
    measured = {row["quantity"]: row for row in summary}
    pairs = (
        (
            "tlb_miss_rate",
            "user_seconds",
            "direction",
            "TLB misses are not measured here; fewer of them show as less time in the program, "
            "but time has other causes too",
        ),
        (
            "fault_rate",
            None,
            "no",
            "the references of the run itself are not counted; see faults",
        ),
        (
            "faults",
            "minor_faults",
            "ratio",
            "a page faults once on both sides, but the kernel maps files in their own size, "
            "several pages at a time, gives areas that no such page fits small ones, and faults "
            "again on memory that was returned",
        ),
    )
    rows: list[declared.PredictionRow] = []
    for quantity, nearest, comparable, why in pairs:
        base, page = expected[quantity][BASE], expected[quantity][page_bytes]
        seen = measured.get(nearest or "")
        rows.append(
            {
                "quantity": quantity,
                "base": base,
                "page": page,
                "ratio": page / base if base else None,
                "measured": nearest,
                "measured_base": seen and seen["base"],
                "measured_page": seen and seen["page"],
                "measured_ratio": seen and seen["ratio"],
                "comparable": comparable,
                "why": why,
            }
        )
    return rows
