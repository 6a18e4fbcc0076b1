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
from pathlib import Path
from typing import Any, Unpack

from nearfar import _engine
from nearfar.declared import run as declared
from nearfar.errors import NearfarError
from nearfar.live_result import LiveResult, LiveRun, record
from nearfar.output import watched
from nearfar.processes import handling
from nearfar.schema import knob_text, takes
from nearfar.tiering import made_of
from nearfar.units import duration, percent, size

LIBRARY = Path(__file__).parent / "_live" / "libnearfar_preload.so"
"""The library that is loaded into the program, built by ``make live``."""


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

    def __str__(self) -> str:
        """What it came to, in three lines or four."""
        seen = self.counters
        demoted = seen["demotions_copied"] + seen["demotions_remapped"]
        lines = [
            f"{self.seconds:.2f} s, of it {self.user_seconds + self.system_seconds:.2f} s of "
            f"processors; at most {size(self.fast_bytes)} fast, "
            f"{size(self.far_pages_bytes)} far in {size(self.far_bytes)}",
            f"promotions {seen['promotions']:,} ({seen['shadow_copies']:,} kept a shadow), "
            f"demotions {demoted:,} ({seen['demotions_remapped']:,} to their shadow)",
            f"hint faults {seen['hint_faults']:,}, shadow faults {seen['shadow_faults']:,}, "
            f"aborts {seen['aborts']:,}, let through {seen['window_faults']:,}",
        ]
        if seen["fetches"]:
            each = [seen[name] / seen["fetches"] for name in ("fetches_predicted_ns", "fetches_ns")]
            lines.append(
                f"waited for the far tier {seen['fetches']:,} times, {duration(each[1])} each "
                f"(predicted {duration(each[0])}); slept {seen['slept']:,}, "
                f"kept a processor {seen['stalled']:,}"
            )
        return "\n".join(lines)


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


@takes(declared.OPTIONS)
def run(
    command: Sequence[str],
    *,
    fast: str | int,
    knobs: Mapping[str, str | float | bool] | None = None,
    **options: Unpack[declared.Options],
) -> Outcome:
    """Run ``command`` with a part of its memory fast and the rest in a far tier.

    The program's standard streams are those of this process.

    Args:
        command: program (a path, or a name in ``PATH``) and arguments.
        {options}
        knobs: the policy's, by name, as it writes them.

    A policy is a name, or a class or object that follows :class:`nearfar.tiering.Policy`. That runs
    in this process: each process of the program has an object of its own, called in a thread of its
    own. An exception in a hook ends the program and comes out of this function.

    Raises:
        NearfarError: the program cannot be run; the policy cannot live; userfaultfd cannot be had
            (exit code 3).
    """
    words = [str(word) for word in command]
    if not words:
        raise NearfarError("command: is empty; put the program after `--`")
    if not LIBRARY.exists():
        raise NearfarError(f"{LIBRARY.name}: is not built; run `make live`", exit_code=3)
    values, policy, given = asked({"fast": fast, **options}, knobs)
    meter = _Meter() if watched() else None

    def progress(text: str) -> None:
        if meter is not None:
            meter.show(json.loads(text))

    # Ctrl-C is the program's, which the terminal sends it to.
    with handling([signal.SIGINT], lambda _number, _frame: None):
        text = _engine.live_run(
            words, LIBRARY, options=values, knobs=given, progress=progress, policy=policy
        )
    answer = json.loads(text)
    if policy is not None:
        answer["options"]["policy"] = policy[0]
    found = answer["summary"]
    if meter is not None:
        print("\x1b[K", end="", file=sys.stderr)
    fast_bytes, far, window = (4096 * pages for pages in found["peak"])
    user, system = found["cpu_seconds"]
    made = record(words, answer["options"], given)
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
        why=found["why"],
    )
