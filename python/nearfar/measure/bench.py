"""How values are measured: how often, on which processor, and what is said of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from nearfar import _engine
from nearfar.measure.samples import Samples, fastest, rate_text, time_text
from nearfar.measure.system import System
from nearfar.units import digits

LINE: Final = 64
PAGE: Final = 4096
LARGE: Final = 2 << 20
#: Bytes of which one line is visited: a prefetcher that fetches neighbours fetches for nothing.
APART: Final = 4 * LINE
#: Bytes visited in random order before the next as many: even in small pages, also in those of a
#: host, the first-level TLB reaches it.
_WINDOW: Final = 64 << 10
#: Processor time of a batch, and of one in a quick run, nanoseconds.
_BATCH, _QUICK_BATCH = 1e6, 1e5


@dataclass(frozen=True)
class Sourced:
    """A value of a machine file and where it is from."""

    value: str | int | float | list[int] | list[list[int]]
    source: str


class Loads:
    """Loads that wait for each other, through memory of their own."""

    def __init__(
        self,
        bench: Bench,
        count: int,
        *,
        stride: int = APART,
        window: int = _WINDOW,
        chains: int = 1,
        pages: str = "huge",
        node: int | None = None,
    ) -> None:
        """Lay them through ``count`` lines, one each ``stride``, ``window`` bytes at a time."""
        self._bench = bench
        self._chase = _engine.Chase(
            count * stride,
            stride=stride,
            window=max(window // chains // stride, 2),
            chains=chains,
            pages=pages,
            node=node,
        )
        few = min(self._chase.loads, 20_000)
        ns = fastest(self._chase.times(few, 3))
        # Twice round, to fill the caches; where it is too long for that, no cache holds it.
        if self._chase.loads * ns < 50e6:
            self._chase.times(self._chase.loads, 2)
            ns = min(ns, *self._chase.times(few, 3))
        self._loads = max(round(bench.batch / max(ns, 0.1)), chains)

    def run(self) -> float:
        """Nanoseconds a load: the fastest of some batches."""
        return fastest(self._chase.times(self._loads, self._bench.batches))


class Bench:
    """What one measurement of a machine shares.

    Attributes:
        system: what the machine says of itself.
        quick: fewer and shorter runs.
        notes: what is noisy, and what was left out and why.
    """

    def __init__(self, system: System, *, quick: bool, say: Callable[[str], None]) -> None:
        """``say`` is called with what is measured next."""
        self.system = system
        self.quick = quick
        self.say = say
        self.notes: list[str] = []
        self.runs = 3 if quick else 9
        self.batches = 3 if quick else 10
        self.batch = _QUICK_BATCH if quick else _BATCH
        self.where = f"on {system.model}, Linux {system.release}"

    @contextmanager
    def pinned(self, node: int | None = None) -> Iterator[int]:
        """Stay on one processor, of a memory node where one is given; the last is busy least.

        Others wait meanwhile, where this process may ask for that.
        """
        was, priority = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
        cpus = self.system.node_cpus.get(node) if node is not None else None
        cpu = (cpus or self.system.cpus)[-1]
        os.sched_setaffinity(0, {cpu})
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        try:
            yield cpu
        finally:
            os.sched_setaffinity(0, was)
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, priority)

    def repeat(self, run: Callable[[], float]) -> Samples:
        """As many runs as there are to be."""
        return Samples(tuple(run() for _ in range(self.runs)))

    def difference(self, more: Loads, less: Loads) -> Samples:
        """How much longer a load of ``more`` takes, run by run, so that both meet what disturbs."""
        return self.repeat(lambda: more.run() - less.run())

    def time(self, key: str, samples: Samples, how: str = "") -> Sourced:
        """A time in nanoseconds, and a note if it is noisy."""
        return Sourced(time_text(samples.median), self.source(key, samples, "ns", how))

    def rate(self, key: str, samples: Samples, how: str = "") -> Sourced:
        """A bandwidth in bytes a second, and a note if it is noisy."""
        source = self.source(key, samples.scaled(1e-9), "GB/s", how)
        return Sourced(rate_text(samples.median), source)

    def source(self, key: str, samples: Samples, unit: str, how: str = "") -> str:
        """Where a measured value is from."""
        if samples.noisy:
            spread = f"{digits(min(samples.runs))}-{digits(max(samples.runs))} {unit}"
            self.notes.append(f"{key}: noisy: {spread} in {len(samples.runs)} runs")
        return ", ".join(filter(None, [samples.described(unit), how, self.where]))
