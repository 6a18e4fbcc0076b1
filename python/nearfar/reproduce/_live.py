"""NOMAD's micro-benchmark as a real program (``nomad.c``), under ``nearfar run``.

The program and its manager, which moves its pages, share one processor. Results therefore do not
depend on scheduling, and the time of a round includes moving pages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nearfar import live
from nearfar.errors import NearfarError

#: Share of the benchmark's 27 GiB of memory, and of its work.
SCALE = 1 / 27
#: At full size: pages of memory and working set, operations of a round, and seconds of pause
#: before each round.
RSS_PAGES, WSS_PAGES, OPERATIONS, PAUSE = 27 << 18, 27 << 17, 30_000_000, 10.0
ROUNDS = 4
SOURCE = Path(__file__).parent / "nomad.c"


@dataclass(frozen=True)
class LiveRun:
    """One run.

    Attributes:
        outcome: the result of ``nearfar run``.
        seconds: time of the warm-up and of each round, by the program's clock.
        operations: page accesses in each of them.
    """

    outcome: live.Outcome
    seconds: list[float]
    operations: int

    @property
    def bandwidth_mb_s(self) -> float:
        """MiB per second of the last round; named as the column of the tiering study."""
        return self.operations * 4096 / (1 << 20) / self.seconds[-1]


class MicroBenchmark:
    """The program, compiled.

    Raises:
        NearfarError: there is no C compiler, or ``nearfar run`` cannot work here (exit code 3).
    """

    def __init__(self, folder: Path, scale: float = SCALE) -> None:
        if (why := live.refused()) is not None:
            raise NearfarError(why, exit_code=3)
        if shutil.which("cc") is None:
            raise NearfarError("cc: not found; install a C compiler, such as gcc", exit_code=3)
        self.program = folder / "nomad"
        command = ["cc", "-O2", "-o", str(self.program), str(SOURCE), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NearfarError(f"nomad.c: {done.stderr.strip().splitlines()[-1]}", exit_code=3)
        self.scale = scale
        self.operations = int(OPERATIONS * scale)

    def command(self, mix: str, seed: int) -> list[str]:
        """The command line for a mix of loads and stores."""
        sizes = [int(size * self.scale) for size in (RSS_PAGES, WSS_PAGES)]
        numbers = [*sizes, self.operations, ROUNDS, mix, seed, int(1e6 * PAUSE * self.scale)]
        return [str(self.program), *map(str, numbers)]

    def run(self, mix: str, policy: str, seed: int, fast: str, slow: str) -> LiveRun:
        """Run the program with a policy and memory sizes (at full scale, such as ``13707M``).

        Raises:
            NearfarError: it failed, or a page had wrong contents.
        """
        with tempfile.TemporaryDirectory() as scratch, one_processor():
            # The shell redirects the output to its $0, the report.
            report = Path(scratch) / "report"
            shell = ["sh", "-c", 'exec "$@" > "$0"', str(report), *self.command(mix, seed)]
            fast_bytes, far_bytes = (
                str(int(float(text.rstrip("M")) * self.scale * (1 << 20))) for text in (fast, slow)
            )
            outcome = live.run(shell, policy=policy, fast=fast_bytes, far_size=far_bytes, far="shm")
            # Times of the warm-up and the rounds, then the number of pages with wrong contents; the
            # program fails if there are any.
            words = report.read_text(encoding="ascii").split() if report.exists() else []
        if outcome.exit_code != 0 or len(words) != ROUNDS + 2:
            why = outcome.why or f"it ended with exit code {outcome.exit_code}"
            raise NearfarError(f"nomad.c under {policy}: {why}", exit_code=1)
        return LiveRun(outcome, [float(word) for word in words[:-1]], self.operations)


@contextmanager
def one_processor() -> Iterator[None]:
    """Use only the last available processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
