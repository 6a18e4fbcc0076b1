"""How values are measured: number of runs, processor, and the source of each value."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from nearfar import _engine
from nearfar.measure.samples import Samples, rate_text, time_text
from nearfar.measure.system import System
from nearfar.units import digits

#: Bytes of a cache line, a small page and a large page.
LINE: Final = 64
PAGE: Final = 4096
LARGE: Final = 2 << 20
#: Bytes between accessed lines, so that prefetching adjacent lines does not help.
STRIDE: Final = 4 * LINE
#: Bytes accessed in random order before the next window; the first-level TLB covers them even with
#: small pages in the guest and the host.
_WINDOW: Final = 64 << 10
#: Processor time of a batch, and of one in a quick run, nanoseconds.
_BATCH, _QUICK_BATCH = 1e6, 1e5


@dataclass(frozen=True)
class Sourced:
    """A value of a machine file and its source."""

    value: str | int | float | list[int] | list[list[int]]
    source: str


#: A section of a machine file: values and subsections by key.
Section = dict[str, "Sourced | str | list[str] | Section"]


class Loads:
    """Dependent loads from newly mapped memory."""

    def __init__(
        self,
        bench: Bench,
        count: int,
        *,
        stride: int = STRIDE,
        window: int = _WINDOW,
        chains: int = 1,
        pages: str = "huge",
        node: int | None = None,
    ) -> None:
        """Access ``count`` lines, ``stride`` bytes apart, in windows of ``window`` bytes.

        ``chains``: number of chains of dependent loads in parallel.
        """
        self._bench = bench
        self._chase = _engine.Chase(
            count * stride,
            stride=stride,
            window=max(window // chains // stride, 2),
            chains=chains,
            pages=pages,
            node=node,
        )
        sample = min(self._chase.loads, 20_000)
        ns = min(self._chase.times(sample, 3))
        # Two rounds fill the caches. A chain that takes over 50 ms per round fits into none.
        if self._chase.loads * ns < 50e6:
            self._chase.times(self._chase.loads, 2)
            ns = min(ns, *self._chase.times(sample, 3))
        self._loads = max(round(bench.batch / max(ns, 0.1)), chains)

    def run(self) -> float:
        """Nanoseconds per load: the fastest of several batches, because noise only adds time."""
        return min(self._chase.times(self._loads, self._bench.batches))


class Bench:
    """State that the measurements of a machine share.

    Attributes:
        system: what the machine reports.
        quick: fewer and shorter runs.
        notes: noisy values, and omissions with their reasons.
    """

    def __init__(self, system: System, *, quick: bool, say: Callable[[str], None]) -> None:
        """``say`` is called with the name of the next measurement."""
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
        """Run on one processor, of ``node`` if given, at the highest permitted priority."""
        affinity, priority = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0)
        cpus = self.system.node_cpus.get(node) if node is not None else None
        cpu = (cpus or self.system.cpus)[-1]  # usually the least busy
        os.sched_setaffinity(0, {cpu})
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
        try:
            yield cpu
        finally:
            os.sched_setaffinity(0, affinity)
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, 0, priority)

    def repeat(self, run: Callable[[], float]) -> Samples:
        """The results of ``run``, called ``self.runs`` times."""
        return Samples(tuple(run() for _ in range(self.runs)))

    def difference(self, more: Loads, less: Loads) -> Samples:
        """How much longer a load of ``more`` takes. Runs alternate, so that noise affects both."""
        return self.repeat(lambda: more.run() - less.run())

    def time(self, key: str, samples: Samples, how: str = "") -> Sourced:
        """A time in nanoseconds."""
        return Sourced(time_text(samples.median), self.source(key, samples, "ns", how))

    def rate(self, key: str, samples: Samples, how: str = "") -> Sourced:
        """A bandwidth in bytes per second."""
        source = self.source(key, samples.scaled(1e-9), "GB/s", how)
        return Sourced(rate_text(samples.median), source)

    def source(self, key: str, samples: Samples, unit: str, how: str = "") -> str:
        """The source of a measured value. Adds a note if it is noisy."""
        if samples.noisy:
            spread = f"{digits(min(samples.runs))}-{digits(max(samples.runs))} {unit}"
            self.notes.append(f"{key}: noisy: {spread} in {len(samples.runs)} runs")
        return ", ".join(filter(None, [samples.described(unit), how, self.where]))
