"""``apply``: runs a command with one page size on this machine, and restores the settings.

>>> print(apply(["sort", "big.txt"], page="64K").plan)      # doctest: +SKIP
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Unpack, cast

from nearfar import _engine
from nearfar import machine as machines
from nearfar.apply import of_policies
from nearfar.apply.measure import Measured, run
from nearfar.apply.of_policies import prediction_row
from nearfar.apply.setting import (
    BASE,
    RUNTIME,
    SYSFS,
    Change,
    Plan,
    acting,
    applied,
    plan,
    restore,
)
from nearfar.declared import apply as declared
from nearfar.errors import NearfarError
from nearfar.regions import Explained
from nearfar.result import Result
from nearfar.schema import complete, count, takes
from nearfar.sizes import parse_bytes
from nearfar.thp import is_policy, largest
from nearfar.thp import settings as settings_of

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ApplyResult", "Change", "Plan", "apply", "plan", "restore"]

#: Values of the column ``setting``: the machine as it is, and with the page size applied.
_BASE_RUN, _PAGE_RUN = "base", "page"
#: Columns, and their files below ``hugepages-*/stats``.
_COUNTERS: Final = {"huge_allocations": "anon_fault_alloc", "huge_fallbacks": "anon_fault_fallback"}
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
    """The plan and, unless it was a dry run, the measurements.

    Attributes:
        plan: the page size and the changes of settings.
        command: program and arguments.
        done: whether the command was run; False for a dry run, without rows.
        rows: one per run (docs/apply.md names the keys).
        summary: one per quantity: medians at ``base`` and ``page``, and their ratio.
        prediction: one per predicted quantity, with the nearest measured one; empty without trace.
        exit_code: the first exit code of the command that is not 0, else 0.
    """

    shown = "nearfar.report.applied:report"

    plan: Plan
    command: list[str]
    done: bool
    rows: list[declared.Row] = field(default_factory=list)
    summary: list[declared.SummaryRow] = field(default_factory=list)
    prediction: list[declared.PredictionRow] = field(default_factory=list)
    exit_code: int = 0

    def to_dict(self) -> dict[str, object]:
        """Everything as plain values, as ``--format json`` prints it."""
        return asdict(self)

    @property
    def table(self) -> pyarrow.Table:
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
    """Run ``command`` with pages of one size; without ``yes``, only return the planned changes.

    The settings apply to the whole machine while the command runs. They are restored after each
    run, even if this process is killed (:mod:`nearfar.apply.setting`).

    Args:
        command: program (a path, or a name in ``PATH``) and arguments.
        {options}
        stdout: of the command, as for ``subprocess.Popen``.
        progress: called before each run with its number, from 0, and the number of runs.
        sysfs: the kernel's folder of settings.
        runtime: folder of the journal and the lock.

    Raises:
        NearfarError: bad input; the kernel cannot set this size; no permission to set it.
    """
    values = complete(declared.OPTIONS, options)
    argv = [str(word) for word in command]
    if not argv:
        raise NearfarError("command: is empty; put the program after `--`")
    if shutil.which(argv[0]) is None:
        raise NearfarError(f"{argv[0]}: no such program in PATH, or it is not executable")
    repeat = count("--repeat", values["repeat"], 1)
    threads = count("--threads", values["threads"], 0, 1024)
    policy = page if isinstance(page, str) and is_policy(page) else None
    policy_settings = None if policy is None else settings_of(policy)
    if policy is not None:
        page_bytes = largest(policy)
    else:
        page_bytes = parse_bytes(page, "--page") if isinstance(page, str) else page
    planned = plan(page_bytes, sysfs, values=policy_settings)
    if not values["yes"]:
        return ApplyResult(replace(planned, setting=policy), argv, done=False)
    trace = values["trace"]
    comparison: of_policies.Compare | None = None
    if trace is not None and policy is not None:
        comparison = of_policies.predicted(Path(trace), policy, acting(sysfs), threads)
    elif trace is not None:
        comparison = partial(_compare, _predict(Path(trace), page_bytes, threads), page_bytes)

    settings = [_BASE_RUN, _PAGE_RUN] if values["compare"] else [_PAGE_RUN]
    runs = [(number, setting) for number in range(1, repeat + 1) for setting in settings]
    # Only one run can read standard input.
    stdin = None if len(runs) == 1 else subprocess.DEVNULL
    rows: list[declared.Row] = []
    for done, (number, setting) in enumerate(runs):
        if progress is not None:
            progress(done, len(runs))
        sys.stdout.flush()
        change = (
            applied(page_bytes, sysfs, runtime, values=policy_settings)
            if setting == _PAGE_RUN
            else nullcontext()
        )
        with change as made_plan:
            planned = made_plan or planned
            before = counters(page_bytes, sysfs)
            disable = None if made_plan is None else made_plan.disable
            measured = run(argv, disable=disable, stdin=stdin, stdout=stdout)
            after = counters(page_bytes, sysfs)
        rows.append(_row(number, setting, page_bytes, measured, before, after))
        if measured.interrupted:
            break
    summary = _summarize(rows)
    return ApplyResult(
        plan=replace(planned, setting=policy),
        command=argv,
        done=True,
        rows=rows,
        summary=summary,
        prediction=[] if comparison is None else comparison(summary),
        exit_code=next((row["exit_code"] for row in rows if row["exit_code"]), 0),
    )


def _row(
    number: int,
    setting: str,
    page_bytes: int,
    measured: Measured,
    before: dict[str, int | None],
    after: dict[str, int | None],
) -> declared.Row:
    row: dict[str, object] = {"run": number, "setting": setting, "page_bytes": page_bytes}
    row |= asdict(measured)
    del row["interrupted"]
    for name, first in before.items():
        last = after[name]
        row[name] = None if first is None or last is None else last - first
    return cast("declared.Row", row)


def counters(page_bytes: int, sysfs: Path = SYSFS) -> dict[str, int | None]:
    """The machine's counters of a page size; None for counters that the kernel lacks."""
    folder = sysfs / f"hugepages-{page_bytes // 1024}kB" / "stats"
    values: dict[str, int | None] = {}
    for name, file in _COUNTERS.items():
        try:
            values[name] = int((folder / file).read_text(encoding="ascii"))
        except OSError:
            values[name] = None
    return values


def _summarize(rows: Sequence[declared.Row]) -> list[declared.SummaryRow]:
    """Medians of each quantity at each setting, and their ratio if both are known."""
    columns = cast("Sequence[Mapping[str, float | None]]", rows)

    def median(quantity: str, setting: str) -> float | None:
        values = [
            column[quantity]
            for row, column in zip(rows, columns, strict=True)
            if row["setting"] == setting
        ]
        known = [value for value in values if value is not None]
        return statistics.median(known) if known else None

    summary: list[declared.SummaryRow] = []
    for quantity in _SUMMARY:
        base, page = median(quantity, _BASE_RUN), median(quantity, _PAGE_RUN)
        ratio = page / base if base and page is not None else None
        summary.append({"quantity": quantity, "base": base, "page": page, "ratio": ratio})
    return summary


def _predict(trace: Path, page_bytes: int, threads: int) -> dict[str, dict[int, float]]:
    """TLB miss rate and faults of the trace at the base page size and at ``page_bytes``.

    As in ``--view machine`` on the default machine, with memory for the whole program.
    """
    sizes = sorted({BASE, page_bytes})
    options = {"page_sizes": [BASE], "memory": "100%", "threads": threads, "view": "machine"}
    on = (machines.paging_machine(None), sizes)
    found: list[Explained] = json.loads(
        _engine.paging_explain(trace, options=options, progress=None, on=on)
    )
    totals = {size: one["total"] for size, one in zip(sizes, found, strict=True)}
    return {
        "tlb_miss_rate": {
            size: one["tlb_misses"] / one["references"] for size, one in totals.items()
        },
        "fault_rate": {
            size: one["minor_faults"] / one["references"] for size, one in totals.items()
        },
        "faults": {size: one["minor_faults"] for size, one in totals.items()},
    }


def _compare(
    predicted: dict[str, dict[int, float]],
    page_bytes: int,
    summary: Sequence[declared.SummaryRow],
) -> list[declared.PredictionRow]:
    """Rows of the prediction, with the nearest measured quantity and whether they compare."""
    pairs = (
        (
            "tlb_miss_rate",
            "user_seconds",
            "direction",
            "TLB misses are not measured; fewer of them reduce user time, but so do other causes",
        ),
        (
            "fault_rate",
            None,
            "no",
            "the references of the run are not counted; see faults",
        ),
        (
            "faults",
            "minor_faults",
            "ratio",
            "free memory may have no block for a large page, and Linux before 6.13 keeps 4 KiB "
            "pages where memory is read before it is written",
        ),
    )
    return [
        prediction_row(
            quantity,
            (predicted[quantity][BASE], predicted[quantity][page_bytes]),
            (summary, nearest),
            (comparable, why),
        )
        for quantity, nearest, comparable, why in pairs
    ]
