"""Runs child processes, measures their time and peak memory, and makes rows of the values."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import comb
from pathlib import Path
from typing import Any

#: Confidence level of :func:`interval`.
CONFIDENCE = 0.95


class BenchError(Exception):
    """An error that the user of the bench can fix; its text is one line."""


@dataclass(frozen=True)
class Row:
    """One printed figure.

    Attributes:
        case: the case it belongs to.
        name: what was measured.
        value: median over the rounds.
        low: minimum of the rounds.
        high: maximum of the rounds.
        unit: of ``value``, ``low`` and ``high``.
        goal: a condition such as ``>= 100`` or ``<= 3``; empty if there is none.
        holds: whether the median meets the goal; ``None`` without a goal, in a quick run, or if
            :func:`judged` cannot tell.
        cores: cores that the work could use; 0 if that does not apply.
        rounds: number of values.
        note: how it was measured, if the name does not say so.
    """

    case: str
    name: str
    value: float
    low: float
    high: float
    unit: str
    goal: str
    holds: bool | None
    cores: int
    rounds: int
    note: str

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def row(
    case: str,
    name: str,
    values: Sequence[float],
    unit: str,
    *,
    goal: str = "",
    cores: int = 0,
    note: str = "",
) -> Row:
    """Make a row of the values of all rounds, whose median decides whether the goal is met."""
    middle = statistics.median(values)
    holds = None
    if goal:
        sign, limit = goal.split()
        holds = middle >= float(limit) if sign == ">=" else middle <= float(limit)
    low, high = min(values), max(values)
    return Row(case, name, middle, low, high, unit, goal, holds, cores, len(values), note)


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """The ratio of each round. Its two sides ran in turn, so a busy machine slowed both."""
    return [a / b for a, b in zip(above, below, strict=True)]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Confidence interval of the median by the sign test; the whole range if values are few."""
    ordered, count = sorted(values), len(values)
    cut = 0  # values outside the interval, at each end
    # The median is below the k-th smallest value with the probability that `count` tosses of a
    # coin give fewer than k heads. `missed`: the probability that it is outside the interval.
    missed = 2.0 * 2.0**-count
    while missed + 2 * comb(count, cut + 1) * 2.0**-count <= 1 - CONFIDENCE:
        cut += 1
        missed += 2 * comb(count, cut) * 2.0**-count
    return ordered[cut], ordered[count - 1 - cut]


def percent(values: Sequence[float]) -> str:
    """The median of shares as a signed percentage, with its :func:`interval`."""
    low, high = interval(values)
    return f"{100 * statistics.median(values):+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def judged(made: Row, values: Sequence[float]) -> Row:
    """The row judged by its :func:`interval`: undecided if the goal lies inside."""
    low, high = interval(values)
    sign, limit = made.goal.split()
    met = [end >= float(limit) if sign == ">=" else end <= float(limit) for end in (low, high)]
    holds = met[0] if met[0] == met[1] else None
    note = f"the median is {low:.3g} to {high:.3g}" + ("" if holds is not None else ": undecided")
    return replace(made, holds=holds, note="; ".join(filter(None, (made.note, note))))


@dataclass(frozen=True)
class Finished:
    """A child process that ended with exit code 0: wall time, peak memory, standard output."""

    seconds: float
    peak_bytes: int
    output: str

    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.output)


def run(
    words: Sequence[str | os.PathLike[str]], *, cores: int = 0, discard: bool = False
) -> Finished:
    """Run a command to its end.

    Args:
        words: program and arguments.
        cores: 1 to pin it to one core; 0 for all cores.
        discard: discard its standard output.

    Raises:
        BenchError: the program is not installed, or failed.
    """
    command = [os.fspath(word) for word in words]

    def pin() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    began = time.monotonic()
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if discard else subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=pin if cores == 1 else None,
        )
    except OSError as error:
        raise BenchError(f"{command[0]}: {error.strerror}") from None
    # Assumes that standard error fits in the pipe's buffer of 64 KiB: a child that writes more
    # would block.
    output = child.stdout.read() if child.stdout else b""
    errors = child.stderr.read() if child.stderr else b""
    # Not Popen.wait, which does not return the usage. ru_maxrss is in KiB on Linux, and is the
    # maximum of the child and of the children that it has waited for.
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        said = errors.decode(errors="replace").strip().splitlines() or ["said nothing"]
        raise BenchError(f"{command[0]}: ended with {child.returncode}: {said[-1]}")
    return Finished(seconds, usage.ru_maxrss * 1024, output.decode())


def alone(
    environment: Mapping[str, str], command: Sequence[str | os.PathLike[str]]
) -> list[str | os.PathLike[str]]:
    """The command line that runs a command with this environment only."""
    return ["/usr/bin/env", "-i", *(f"{k}={v}" for k, v in environment.items()), *command]


def capture(command: Sequence[str], to: Path, environment: Mapping[str, str], *flags: str) -> None:
    """Capture a program and its children, which see only ``environment``."""
    words = nearfar("capture", *flags, "--follow-forks", "--force", "-o", to, "--", *command)
    run(alone(environment, words), discard=True)


def nearfar(*words: str | os.PathLike[str]) -> list[str | os.PathLike[str]]:
    """The command line of ``nearfar`` of this Python environment."""
    return [Path(sys.executable).with_name("nearfar"), *words]
