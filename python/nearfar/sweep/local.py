"""Runs the cells (single studies) of a sweep on this machine, in worker processes.

A thread feeds each worker. If a worker dies (killed, out of memory), only its cell is lost, and
another worker retries it.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from nearfar.sweep import cell
from nearfar.sweep.cell import Job, Outcome

#: Attempts before a cell counts as failed.
ATTEMPTS: Final = 3


def run(jobs: Sequence[Job], workers: int) -> Generator[Outcome]:
    """Run ``jobs`` in ``workers`` processes; yields outcomes as jobs end."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    outcomes: queue.Queue[Outcome | BaseException] = queue.Queue()
    for job in jobs:
        waiting.put(job)
    watchers = [_Watcher(waiting, outcomes) for _ in range(min(workers, len(jobs)))]
    for watcher in watchers:
        watcher.start()
    try:
        for _ in jobs:
            outcome = outcomes.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        for watcher in watchers:
            watcher.stop()
        for watcher in watchers:
            watcher.join()


class _Watcher(threading.Thread):
    """Feeds jobs to one worker process, and replaces it when it dies."""

    def __init__(
        self,
        waiting: queue.SimpleQueue[Job],
        outcomes: queue.Queue[Outcome | BaseException],
    ) -> None:
        super().__init__(daemon=True)
        self.waiting, self.outcomes = waiting, outcomes
        self.process: subprocess.Popen[str] | None = None
        self.stopped = threading.Event()
        self.lock = threading.Lock()

    def run(self) -> None:
        try:
            while not self.stopped.is_set():
                try:
                    job = self.waiting.get_nowait()
                except queue.Empty:
                    break
                outcome = self._do(job)
                if outcome is not None:
                    self.outcomes.put(outcome)
        except Exception as error:  # the function `run` raises it, instead of waiting for ever
            self.outcomes.put(error)
        finally:
            self._end()

    def _do(self, job: Job) -> Outcome | None:
        """The outcome of a job; None when stopped."""
        began, code = time.monotonic(), 0
        for _ in range(ATTEMPTS):
            process = self._process()
            if process is None:
                return None
            assert process.stdin and process.stdout
            with suppress(BrokenPipeError):
                print(json.dumps(job), file=process.stdin, flush=True)
            line = process.stdout.readline()
            if line.endswith("\n"):
                answer: Outcome = json.loads(line)
                return answer
            code = self._end()
            if self.stopped.is_set():
                return None
        name = next((one.name for one in signal.Signals if one == -code), -code)
        died = f"signal {name}" if code < 0 else f"exit code {code}"
        why = (
            f"its worker died {ATTEMPTS} times ({died}); it may need more memory: run with fewer "
            "--workers"
        )
        outcome = cell.outcome_of(job, why, time.monotonic() - began)
        cell.write_outcome(outcome, Path(job["folder"]))
        return outcome

    def _process(self) -> subprocess.Popen[str] | None:
        with self.lock:
            if self.stopped.is_set():
                return None
            if self.process is None:
                # -P: modules in the current folder do not hide nearfar.
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "nearfar.sweep.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                    # In a separate session, the worker gets no Ctrl-C.
                    start_new_session=True,
                )
            return self.process

    def _end(self) -> int:
        """Close the worker's input, which ends it; returns its exit code."""
        with self.lock:
            process, self.process = self.process, None
        if process is None:
            return 0
        assert process.stdin and process.stdout
        with suppress(BrokenPipeError):
            process.stdin.close()
        code = process.wait()
        process.stdout.close()
        return code

    def stop(self) -> None:
        """Kill the worker."""
        self.stopped.set()
        with self.lock:
            if self.process is not None:
                self.process.kill()
