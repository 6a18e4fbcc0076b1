"""``watch``: the memory that a running program needs (docs/watch.md).

>>> result = watch(1234, for_=60, swap="zram")      # doctest: +SKIP
>>> result.rows[0]["memory_bytes"] >> 20               # doctest: +SKIP
64
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Unpack, cast

from nearfar import machine as machines
from nearfar.advise.fleet import share
from nearfar.declared import watch as declared
from nearfar.errors import NearfarError
from nearfar.provenance import Run, provenance
from nearfar.result import FolderResult
from nearfar.schema import Rows, complete, takes
from nearfar.size import limits, zram_ratio
from nearfar.size.swap import NONE, ZRAM, usual
from nearfar.sizes import parse_time
from nearfar.watch import confirm
from nearfar.watch.curve import Point, Prices, enough, of_cycles, of_refaults
from nearfar.watch.methods import AUTO, CHEAP, choose, method
from nearfar.watch.samples import Watched, peak
from nearfar.watch.target import Target, of_pid


@dataclass(frozen=True)
class WatchResult(FolderResult):
    """The memory that a running program needs.

    Attributes:
        run: how it was found.
        rows: one (docs/watch.md names the keys).
        windows: the curve: faults and slowdown by memory size.
    """

    run: Run
    rows: list[declared.Row]
    windows: list[declared.WindowsRow]

    shown = "nearfar.report.watch:view"
    page = "nearfar.report.html.watch:WatchPage"
    chart = "nearfar.report.plots.watch:draw"
    columns: ClassVar[Rows] = declared.ROWS
    further: ClassVar[Mapping[str, Rows]] = {"windows": declared.WINDOWS_ROWS}
    plain: ClassVar[tuple[str, ...]] = ("run", "rows", "windows")


@dataclass(frozen=True)
class Plan:
    """What to watch, and how; checked before it begins.

    Attributes:
        target: the program.
        method, why: the method, and the reason for it.
        machine: the machine with the swap device.
        swap: name of its storage, or :data:`nearfar.size.swap.NONE`.
        seconds: how long to watch.
        budget: the processor time to use, as a share of one processor.
        slowdown: the accepted slowdown, as a share.
        ratio: compression ratio of zram.
        options: all options.
    """

    target: Target
    method: str
    why: str
    machine: machines.Machine
    swap: str
    seconds: float
    budget: float
    slowdown: float
    ratio: float
    options: declared.Options

    @classmethod
    def of(cls, target: int | Target, **options: Unpack[declared.Options]) -> Plan:
        """Check the options; ``target`` may be the number of a process.

        Raises:
            NearfarError: bad input, or no method works for the target.
        """
        if isinstance(target, int):
            target = of_pid(target)
        parsed = complete(declared.OPTIONS, options)
        given = parsed["for_"]
        seconds = float(given) if not isinstance(given, str) else parse_time(given, "--for") / 1e9
        swap = parsed["swap"] or usual()
        machine = machines.paging_machine(parsed["machine"], [] if swap == NONE else [swap])
        name, why = choose(parsed["method"], target)
        plan = cls(
            target=target,
            method=name,
            why=why,
            machine=machine,
            swap=swap,
            seconds=seconds,
            budget=share(parsed["budget"], "--budget"),
            slowdown=share(parsed["slowdown"], "--slowdown"),
            ratio=zram_ratio(parsed["zram_ratio"]),
            options=parsed,
        )
        missing = confirm.lacks(target, swap) if parsed["confirm"] else None
        if missing is not None:
            raise NearfarError(f"--confirm: {missing}")
        return plan

    def prices(self) -> Prices:
        """Times of a fault on a page of swap (0 without swap), and on a page of a file."""
        fault = self.machine.fault_times().fault_ns
        swaps = self.swap != NONE
        storage = self.swap if swaps else next(iter(self.machine.storages))
        ((swap_ns,), (file_ns,)) = (
            times(storage, [4096]) for times in (self.machine.io_ns, self.machine.file_ns)
        )
        return Prices(fault + swap_ns if swaps else 0.0, fault + file_ns)


@takes(declared.OPTIONS)
def watch(
    target: int | Target,
    *,
    progress: Callable[[Watched], None] | None = None,
    **options: Unpack[declared.Options],
) -> WatchResult:
    """Watch a running program.

    Args:
        target: the number of a process, or a target (:mod:`nearfar.watch.target`).
        progress: called now and then with what was observed so far.
        {options}

    Raises:
        NearfarError: bad input, or the target cannot be watched.
    """
    return carry_out(Plan.of(target, **options), progress)


@takes(declared.OPTIONS)
def follow(
    target: int | Target,
    *,
    progress: Callable[[Watched], None] | None = None,
    **options: Unpack[declared.Options],
) -> Iterator[WatchResult]:
    """Watch a running program until it ends, with an answer after each period of ``for_``.

    Args:
        target: as for :func:`watch`.
        progress: as for :func:`watch`.
        {options}

    Raises:
        NearfarError: as :func:`watch`.
    """
    return answers(Plan.of(target, **options), progress)


def answers(plan: Plan, progress: Callable[[Watched], None] | None = None) -> Iterator[WatchResult]:
    """The answers of :func:`follow`. The period in which the target ends is left out, unless it is
    the first.

    Raises:
        NearfarError: ``auto`` has found only a method that slows the target down.
    """
    if plan.options["method"] == AUTO and plan.method not in CHEAP:
        raise NearfarError(
            f"--follow: only {plan.method} works here ({plan.why}), and it slows the program down "
            "each time; to use it anyway, name it with --method"
        )
    return _answers(plan, progress)


def _answers(plan: Plan, progress: Callable[[Watched], None] | None) -> Iterator[WatchResult]:
    is_first = True
    while True:
        try:
            result = carry_out(plan, progress)
        except NearfarError:
            if is_first or plan.target.pids():
                raise
            return
        has_ended = result.rows[0]["no_limit"] is not None
        if is_first or not has_ended:
            yield result
        if has_ended:
            return
        is_first = False


def carry_out(
    plan: Plan,
    progress: Callable[[Watched], None] | None = None,
    trying: Callable[[float], None] | None = None,
) -> WatchResult:
    """Carry out a plan.

    Args:
        plan: what to watch, and how.
        progress: called now and then with what was observed so far.
        trying: called now and then with the seconds for which the advice has been tried.
    """
    chosen = method(plan.method)
    on_progress = progress or (lambda _: None)
    # The peak cannot be read after the target has ended.
    before = peak(plan.target)
    watched = chosen.watch(plan.target, plan.seconds, plan.budget, on_progress)
    highest = max(before, peak(plan.target), round(watched.most))
    curve, *parts = _curves(watched, plan.prices())
    row = _row(plan, watched, curve, parts, highest, chosen.ERROR)
    if plan.options["confirm"]:
        _try(plan, row, watched, trying or (lambda _: None))
    run = provenance(
        "watch",
        arguments=plan.target.words,
        options=declared.OPTIONS,
        values=cast("dict[str, object]", plan.options),
        machine=plan.machine,
    )
    windows = [
        declared.WindowsRow(
            seconds=one.seconds,
            anonymous_bytes=round(one.anonymous),
            file_bytes=round(one.file),
            faults=one.faults,
            slowdown=one.slowdown,
        )
        for one in curve
    ]
    return WatchResult(run, [row], windows)


def _try(
    plan: Plan, row: declared.Row, watched: Watched, progress: Callable[[float], None]
) -> None:
    """Try the advised memory, and add the outcome to the row."""
    tried = None
    goal = row["memory_bytes"]
    if goal < watched.last.resident and not watched.ended:
        tried = confirm.confirm(plan.target, goal, plan.slowdown, plan.seconds, progress)
    if tried is not None:
        row["tried_bytes"], row["tried_faults"] = tried.bytes, tried.faults
        row["tried_slowdown"], row["tried_stopped"] = tried.stalled, tried.stopped
    elif plan.target.pids():
        row["tried_stopped"] = "the advised memory is not less than the resident set"
    else:
        row["tried_stopped"] = "the program has ended"


def _curves(watched: Watched, prices: Prices) -> list[list[Point]]:
    """The curve of all observations, then curves of parts of them, which show its uncertainty."""
    if watched.refaults:
        seconds = watched.seconds / len(watched.refaults)
        parts = [watched.refaults, watched.refaults[::2], watched.refaults[1::2]]
        return [of_refaults(part, seconds, prices) for part in parts]
    cycles = watched.cycles
    without = [[*cycles[:at], *cycles[at + 1 :]] for at in range(len(cycles))]
    return [of_cycles(part, prices) for part in (cycles, *without) if part]


def _row(
    plan: Plan,
    watched: Watched,
    curve: Sequence[Point],
    parts: Sequence[Sequence[Point]],
    highest: int,
    error: tuple[float, float],
) -> declared.Row:
    """The row of the answer.

    Args:
        curve: the curve of all observations.
        parts: curves of parts of the observations; their answers widen the interval.
        highest: the peak resident set since the program began.
        error: by which share the need may be below and above the answer (``ERROR``).
    """
    last, swaps = watched.last, plan.swap != NONE
    most = max(watched.most, last.private + last.file)

    def needed(of: Sequence[Point]) -> Point:
        everything = Point(0.0, last.private, last.file, 0.0, 0.0)
        point = enough(of, plan.slowdown) or everything
        return point if swaps else replace(point, anonymous=last.private)

    point = needed(curve)
    others = [needed(part).bytes for part in parts]
    if swaps and curve and enough(curve, plan.slowdown) is None:
        # The need may be anywhere between the largest memory of the curve and everything.
        others.append(curve[-1].bytes)
    memory = min(max(point.bytes, last.locked), most)
    low = max(min([memory, *others]) * (1 - error[0]), last.locked)
    high_end = min(max([memory, *others]) * (1 + error[1]), most)
    swapped = max(last.private + last.file - memory, 0.0) if swaps else 0.0
    swapped = min(swapped, last.private)
    no_limit = "the program ended during the measurement" if watched.ended else None
    high = limits.high(round(high_end), highest, round(last.locked)) if swaps else None
    return declared.Row(
        vm=plan.target.name,
        method=plan.method,
        why_method=plan.why,
        machine=plan.machine.name,
        storage=plan.swap if swaps else None,
        memory_bytes=round(memory),
        low_bytes=round(low),
        high_end_bytes=round(high_end),
        slowdown=point.slowdown,
        faults=point.faults,
        anonymous_bytes=round(point.anonymous),
        file_bytes=round(point.file),
        resident_bytes=round(watched.most),
        peak_bytes=highest,
        locked_bytes=round(last.locked),
        swapped_bytes=round(swapped),
        zram_bytes=round(swapped / plan.ratio) if plan.swap == ZRAM else None,
        high_bytes=None if no_limit else high,
        max_bytes=None if no_limit else limits.maximum(highest),
        no_limit=no_limit,
        tried_bytes=None,
        tried_faults=None,
        tried_slowdown=None,
        tried_stopped=None,
        seconds=watched.seconds,
        cost=watched.cost / watched.seconds,
        processes=len(plan.target.pids()),
    )
