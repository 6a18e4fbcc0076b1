"""Run a real program in two tiers of memory, under the policies of the simulator.

>>> import nearfar.live
>>> nearfar.live.run(["sort", "big.txt"], fast="64M", far="zstd")      # doctest: +SKIP
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypedDict, Unpack

from nearfar import _engine
from nearfar.declared import run as declared
from nearfar.errors import NearfarError
from nearfar.live_alone import LIBRARY as LIBRARY  # built by ``make live``
from nearfar.live_alone import check_input, measure
from nearfar.live_result import Outcome as Outcome
from nearfar.live_result import record
from nearfar.output import shows_progress
from nearfar.policy import constructor_of, from_file
from nearfar.processes import handling
from nearfar.schema import knob_text, takes
from nearfar.sizes import parse_memory
from nearfar.strict import Json
from nearfar.units import percent, size


class _Progress(TypedDict):
    """Totals so far; ``now``: pages in fast memory and in the far tier, then other numbers."""

    seconds: float
    counters: dict[str, int]
    manager_seconds: float
    now: list[int]


#: Fields of an :class:`Outcome` that the engine returns under the same names.
_SUMMARY: Final = (
    "counters", "images", "far_bytes", "seconds", "manager_seconds", "exit_code", "core_dumped",
    "why", "resident_bytes", "resident_processes", "unmanaged_bytes", "held_bytes",
)  # fmt: skip
#: Options for the engine, the label and constructor of a policy in Python, and knobs.
_Request = tuple[dict[str, object], tuple[str, Callable[[], object]] | None, dict[str, str]]


def counters() -> dict[str, str]:
    """The names of the counters, with descriptions."""
    return dict(_engine.live_counters())


def refused() -> str | None:
    """Why :func:`run` cannot work on this kernel or for this user; None if it can."""
    try:
        _engine.live_probe()
    except NearfarError as error:
        return str(error)
    return None


class _Meter:
    """The status line of a run on standard error."""

    def __init__(self) -> None:
        self.last: _Progress = {"seconds": 0.0, "counters": {}, "manager_seconds": 0.0, "now": []}

    def show(self, now: _Progress) -> None:
        """Print the line, at most every half second."""
        if now["seconds"] - self.last["seconds"] >= 0.5:
            columns = shutil.get_terminal_size().columns
            print(f"\r\x1b[K{self.line(now, columns - 1)}", end="\r", file=sys.stderr, flush=True)

    def line(self, now: _Progress, width: int) -> str:
        """The line, with rates since the last call, without parts that exceed ``width``."""
        last, self.last = self.last, now
        seconds = now["seconds"] - last["seconds"]
        faults, promotions = (
            (now["counters"][name] - last["counters"].get(name, 0)) / seconds
            for name in ("faults", "promotions")
        )
        share = (now["manager_seconds"] - last["manager_seconds"]) / seconds
        fast, far = (size(4096 * pages) for pages in now["now"][:2])
        # Most important first.
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


def _request(
    values: Mapping[str, object], knobs: Mapping[str, str | float | bool] | None
) -> _Request:
    options = dict(values)
    texts = {name: knob_text(value) for name, value in (knobs or {}).items()}
    policy = options.get("policy")
    if isinstance(policy, str):
        policy = from_file(policy)
    # A built-in policy stays in the options, by name.
    if policy is None:
        return options, None, texts
    del options["policy"]
    label, make, defaults = constructor_of(policy)
    return options, (label, make), defaults | texts


@takes(declared.OPTIONS)
def run(
    command: Sequence[str],
    *,
    fast: str | int,
    alone: bool = False,
    knobs: Mapping[str, str | float | bool] | None = None,
    **options: Unpack[declared.Options],
) -> Outcome:
    """Run ``command`` with a part of its memory fast and the rest in a far tier.

    The program's standard streams are those of this process.

    Args:
        command: program (a path, or a name in ``PATH``) and arguments.
        {options}
        alone: whether to run the program without nearfar first, its output discarded, for the
            slowdown; a line on standard error says so. If ``fast`` is a share, this happens in any
            case.
        knobs: knobs of the policy, by name.

    A policy is a name, a Python file, or a class or object that implements
    :class:`nearfar.policy.Policy`. Its hooks run in this process, with an object and a thread for
    each process of the program. An exception in a hook ends the program and is raised here.

    Raises:
        NearfarError: the program cannot be run, the policy cannot manage a real program, standard
            input must be read twice and cannot be, or userfaultfd is not available (exit code 3).
    """
    if not isinstance(alone, bool):
        raise NearfarError("alone: is not true or false")
    words = [str(word) for word in command]
    if not words:
        raise NearfarError("command: is empty; put the program after `--`")
    if not LIBRARY.exists():
        raise NearfarError(f"{LIBRARY.name}: is not built; run `make live`", exit_code=3)
    values, policy, texts = _request({"fast": fast, **options}, knobs)
    bare = None
    if alone or any(memory.is_fraction for memory in parse_memory(str(fast), "--fast")):
        place = "--alone" if alone else f"--fast {fast}"
        check_input(place)
        _engine.live_check(words[0], options=values, knobs=texts, policy=policy)
        what = "running the program without nearfar first; its output is discarded"
        print(f"nearfar: {place}: {what}", file=sys.stderr, flush=True)
        bare = measure(words, place)
    meter = _Meter() if shows_progress() else None

    def progress(text: str) -> None:
        if meter is not None:
            meter.show(json.loads(text))

    # The terminal sends Ctrl-C to the program as well, which handles it.
    with handling([signal.SIGINT], lambda _number, _frame: None):
        text = _engine.live_run(
            words,
            LIBRARY,
            options=values,
            knobs=texts,
            progress=progress,
            policy=policy,
            resident=None if bare is None else bare.resident_bytes,
        )
    answer: Json = json.loads(text)
    if policy is not None:
        given = options["policy"]
        answer["options"]["policy"] = given if isinstance(given, str) else policy[0]
    summary = answer["summary"]
    if meter is not None:
        print("\x1b[K", end="", file=sys.stderr)
    fast_bytes, far_pages_bytes, window_bytes = (4096 * pages for pages in summary["peak"])
    user, system = summary["cpu_seconds"]
    run = record(words, answer["options"], texts, alone=alone)
    return Outcome(
        run=run,
        command=words,
        options=run["options"],
        fast_bytes=fast_bytes,
        far_pages_bytes=far_pages_bytes,
        window_bytes=window_bytes,
        user_seconds=user,
        system_seconds=system,
        **{name: summary.get(name) for name in _SUMMARY},
        **answer["setup"],
        alone_seconds=None if bare is None else bare.seconds,
        alone_exit_code=None if bare is None else bare.exit_code,
        alone_bytes=None if bare is None else bare.resident_bytes,
    )
