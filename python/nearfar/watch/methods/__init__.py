"""Methods to observe which memory a running process uses, one module each.

The name of a method is that of its module::

    SUMMARY = "one line"
    ERROR = (0.1, 0.4)              # in 9 of 10 cases, the need was up to 10 % less and 40 % more
    def lacks(target): ...          # what the kernel or the user's rights lack, or None
    def watch(target, seconds, share, progress): ...

``watch`` observes the target for some seconds, uses at most a share of one processor, and returns
:class:`nearfar.watch.samples.Watched`; it sends no signal, and restores what it changes even if it
is interrupted. ``ERROR`` is measured (docs/watch.md): a test compares it with the recorded results
of the benchmark.

To add a method, write its module and a test, add it to :data:`ORDER` and to docs/watch.md, and
measure its error: ``bench/run.py --only watch``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

from nearfar.errors import NearfarError, unknown

if TYPE_CHECKING:
    from nearfar.watch.samples import Watched
    from nearfar.watch.target import Target

#: The methods; ``auto`` takes the first that lacks nothing.
ORDER: Final = ("accessed", "damon", "touch", "squeeze")
AUTO: Final = "auto"
#: Methods that do not slow the target down.
CHEAP: Final = ("accessed", "damon")

Progress = Callable[["Watched"], None]


class Method(Protocol):
    """A module of this package."""

    SUMMARY: str
    ERROR: tuple[float, float]

    def lacks(self, target: Target) -> str | None:
        """What is missing to watch the target, and how to get it; None if nothing is."""

    def watch(self, target: Target, seconds: float, share: float, progress: Progress) -> Watched:
        """Observe the target.

        Args:
            target: what to observe.
            seconds: how long.
            share: the most processor time to use, as a share of one processor.
            progress: called now and then with what was observed so far.

        Raises:
            NearfarError: observing the target needs more than ``share``, or it ended at once.
        """


def method(name: str) -> Method:
    """The method of this name.

    Raises:
        NearfarError: there is none.
    """
    if name not in ORDER:
        raise unknown("--method: no method", name, [AUTO, *ORDER], "there are:")
    return cast("Method", importlib.import_module(f"{__name__}.{name}"))


def choose(name: str, target: Target) -> tuple[str, str]:
    """The method to use for a target, and why.

    Raises:
        NearfarError: the named method, or with ``auto`` every one, lacks something.
    """
    if name != AUTO:
        requested = method(name)
        missing = requested.lacks(target)
        if missing is not None:
            raise NearfarError(f"--method {name}: {missing}")
        return name, f"{requested.SUMMARY}, as requested"
    why: list[str] = []
    for each in ORDER:
        missing = method(each).lacks(target)
        if missing is None:
            return each, "; ".join([method(each).SUMMARY, *why])
        why.append(f"not {each}: {missing}")
    raise NearfarError(f"{target.name}: {'; '.join(why)}")
