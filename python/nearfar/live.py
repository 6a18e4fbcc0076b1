"""A real program in two tiers of memory, under the policies that the simulator runs.

>>> import nearfar.live
>>> nearfar.live.run(["sort", "big.txt"], fast="64M", far="zstd")      # doctest: +SKIP
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from nearfar import _engine
from nearfar.declared import run as declared
from nearfar.errors import NearfarError
from nearfar.live_alone import LIBRARY as LIBRARY  # built by ``make live``
from nearfar.live_alone import Alone as Alone
from nearfar.live_alone import check_input, measure
from nearfar.live_lines import lines
from nearfar.live_result import RESIDENT, LiveResult, LiveRun, record
from nearfar.output import watched
from nearfar.processes import handling
from nearfar.schema import knob_text, takes
from nearfar.sizes import parse_memory
from nearfar.tiering import made_of
from nearfar.units import percent, size


@dataclass(frozen=True)
class Outcome(LiveResult):
    """What a run came to.

    Attributes:
        run: how it was made: command, options, version, kernel.
        command: program and arguments.
        options: what was asked for.
        counters: what happened, by name (docs/run.md has them), of all processes.
        images: process images that were managed; a program that a process becomes is another.
        fast_bytes: most fast memory in use at a moment that was looked at.
        far_pages_bytes: most memory in the far tier, shadows included, before compression.
        window_bytes: most far memory that was let through without a promotion.
        far_bytes: most bytes that the far tier took for it.
        seconds: from start to end.
        user_seconds: processor time of the program and its managers.
        system_seconds: the same in the kernel.
        manager_seconds: what of both was the managers', without up to 40 ms before the end of each.
        budget_bytes: fast memory of each process.
        far_size_bytes: most memory of each in the far tier, before compression.
        far_latency_ns: time that a page took to or from the far tier at least.
        exit_code: the program's; 128 + N when signal N ended it.
        why: why nearfar ended the program, if it did.
        alone_seconds: how long the program took without nearfar; None unless that was measured, as
            are the next two.
        alone_exit_code: its exit code then.
        alone_bytes: most private memory that one of its processes had then.
        resident_bytes: most private memory (RssAnon) of all processes at a moment that was looked
            at; the next three are of that moment.
        resident_processes: processes that were managed then.
        unmanaged_bytes: what of it was in mappings that are not managed.
        held_bytes: what of it was in pages that could not be moved: locked, held by I/O, or shared
            with a child.
        core_dumped: the program has left a core file, in which pages that were far are missing.
    """

    run: LiveRun
    command: list[str]
    options: dict[str, Any]
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
        """How many times as long as bare it took; None where that is not known.

        Nor does it say anything where the program did something else, as its exit code shows.
        """
        if not self.alone_seconds or self.alone_exit_code != self.exit_code:
            return None
        return self.seconds / self.alone_seconds

    def __str__(self) -> str:
        """What it came to, in three to five lines."""
        return "\n".join(lines(self))


def counters() -> dict[str, str]:
    """What is counted: names and what they mean."""
    return dict(_engine.live_counters())


def refused() -> str | None:
    """Why this kernel, or this user, cannot have what :func:`run` needs; None if it can."""
    try:
        _engine.live_probe()
    except NearfarError as error:
        return str(error)
    return None


class _Meter:
    """The line on standard error that says how a run goes."""

    def __init__(self) -> None:
        self.last: Mapping[str, Any] = {"seconds": 0.0, "counters": {}, "manager_seconds": 0.0}

    def show(self, now: Mapping[str, Any]) -> None:
        """Show this, if half a second has passed since the last."""
        if now["seconds"] - self.last["seconds"] >= 0.5:
            columns = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{self.line(now, columns - 1)}", end="\r", file=sys.stderr, flush=True)

    def line(self, now: Mapping[str, Any], width: int) -> str:
        """What there is to say since the last time, as much as fits."""
        last, self.last = self.last, now
        past = now["seconds"] - last["seconds"]
        faults, promotions = (
            (now["counters"][name] - last["counters"].get(name, 0)) / past
            for name in ("faults", "promotions")
        )
        share = (now["manager_seconds"] - last["manager_seconds"]) / past
        fast, far = (size(4096 * pages) for pages in now["now"][:2])
        # The most important first.
        parts = [
            f"{now['seconds']:.0f} s: {fast} fast",
            f"{far} far",
            f"{promotions:,.0f} promotions/s",
            f"manager {percent(share)} CPU",
            f"{faults:,.0f} faults/s",
        ]
        while len(parts) > 1 and len(", ".join(parts)) > width:
            parts.pop()
        return ", ".join(parts)


def is_share(fast: str | int) -> bool:
    """Whether fast memory is given as a share of the program's peak resident set.

    Raises:
        NearfarError: it is no size.
    """
    return any(one.is_fraction for one in parse_memory(str(fast), "--fast"))


def asked(
    values: Mapping[str, Any], knobs: Mapping[str, str | float | bool] | None
) -> tuple[dict[str, Any], tuple[str, Callable[[], Any]] | None, dict[str, str]]:
    """Options for the engine, a policy that is written in Python beside them, and knobs as text."""
    options = dict(values)
    given = {name: knob_text(value) for name, value in (knobs or {}).items()}
    policy = options.get("policy")
    if policy is None or isinstance(policy, str):
        return options, None, given
    label, make, own = made_of(options.pop("policy"))
    return options, (label, make), own | given


def _checked(
    command: Sequence[str],
    values: Mapping[str, Any],
    knobs: Mapping[str, str | float | bool] | None,
) -> tuple[list[str], tuple[dict[str, Any], tuple[str, Callable[[], Any]] | None, dict[str, str]]]:
    """Program and arguments, and what :func:`asked` makes of the rest."""
    words = [str(word) for word in command]
    if not words:
        raise NearfarError("command: is empty; put the program after `--`")
    if not LIBRARY.exists():
        raise NearfarError(f"{LIBRARY.name}: is not built; run `make live`", exit_code=3)
    return words, asked(values, knobs)


@takes(declared.OPTIONS)
def run_alone(
    command: Sequence[str],
    place: str = "--alone",
    *,
    fast: str | int,
    knobs: Mapping[str, str | float | bool] | None = None,
    **options: Unpack[declared.Options],
) -> Alone:
    """Run ``command`` without nearfar and measure it, if :func:`run` can run it afterwards.

    Its output is discarded; a line on standard error says so.

    Args:
        command: program (a path, or a name in ``PATH``) and arguments.
        place: the option that asks for it, for messages.
        {options}
        knobs: the policy's, by name, as it writes them.

    Raises:
        NearfarError: as :func:`run`; standard input cannot be read twice.
    """
    words, (values, policy, given) = _checked(command, {"fast": fast, **options}, knobs)
    check_input(place)
    _engine.live_check(words[0], options=values, knobs=given, policy=policy)
    what = f"nearfar: {place}: running the program bare first; its output is discarded"
    print(what, file=sys.stderr, flush=True)
    return measure(words, place)


@takes(declared.OPTIONS)
def run(
    command: Sequence[str],
    *,
    fast: str | int,
    alone: bool | Alone = False,
    knobs: Mapping[str, str | float | bool] | None = None,
    **options: Unpack[declared.Options],
) -> Outcome:
    """Run ``command`` with a part of its memory fast and the rest in a far tier.

    The program's standard streams are those of this process.

    Args:
        command: program (a path, or a name in ``PATH``) and arguments.
        {options}
        alone: run the program without nearfar first, its output discarded, for the slowdown; or
            what :func:`nearfar.live_alone.measure` found. A share as ``fast`` needs it as well.
        knobs: the policy's, by name, as it writes them.

    A policy is a name, or a class or object that follows :class:`nearfar.tiering.Policy`. That runs
    in this process: each process of the program has an object of its own, called in a thread of its
    own. An exception in a hook ends the program and comes out of this function.

    Raises:
        NearfarError: the program cannot be run; the policy cannot live; userfaultfd cannot be had
            (exit code 3).
    """
    words, (values, policy, given) = _checked(command, {"fast": fast, **options}, knobs)
    bare = alone if isinstance(alone, Alone) else None
    if bare is None and (alone or is_share(fast)):
        bare = run_alone(
            words, "--alone" if alone else f"--fast {fast}", fast=fast, knobs=knobs, **options
        )
    meter = _Meter() if watched() else None

    def progress(text: str) -> None:
        if meter is not None:
            meter.show(json.loads(text))

    # Ctrl-C is the program's, which the terminal sends it to.
    with handling([signal.SIGINT], lambda _number, _frame: None):
        text = _engine.live_run(
            words,
            LIBRARY,
            options=values,
            knobs=given,
            progress=progress,
            policy=policy,
            resident=None if bare is None else bare.resident_bytes,
        )
    answer = json.loads(text)
    if policy is not None:
        answer["options"]["policy"] = policy[0]
    found = answer["summary"]
    if meter is not None:
        print("\x1b[K", end="", file=sys.stderr)
    fast_bytes, far, window = (4096 * pages for pages in found["peak"])
    user, system = found["cpu_seconds"]
    made = record(words, answer["options"], given, alone=bool(alone))
    return Outcome(
        run=made,
        command=words,
        options=made["options"],
        counters=found["counters"],
        images=found["images"],
        fast_bytes=fast_bytes,
        far_pages_bytes=far,
        window_bytes=window,
        far_bytes=found["far_bytes"],
        seconds=found["seconds"],
        user_seconds=user,
        system_seconds=system,
        manager_seconds=found["manager_seconds"],
        **answer["setup"],
        exit_code=found["exit_code"],
        core_dumped=found["core_dumped"],
        why=found["why"],
        alone_seconds=None if bare is None else bare.seconds,
        alone_exit_code=None if bare is None else bare.exit_code,
        alone_bytes=None if bare is None else bare.resident_bytes,
        **{name: found.get(name) for name in RESIDENT},
    )
