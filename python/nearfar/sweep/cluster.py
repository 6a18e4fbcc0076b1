"""Runs the cells (single studies) of a sweep on a Dask cluster.

Workers see the sweep's folder and traces under the same paths. They write finished cells
themselves, so no finished cell is lost if the scheduler or the sweep ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Final

from nearfar.errors import NearfarError
from nearfar.sweep import cell
from nearfar.sweep.cell import Job, Outcome

if TYPE_CHECKING:
    import distributed

_TIMEOUT_SECONDS: Final = 15


class Cluster:
    """A connection to a cluster.

    Args:
        where: address of its scheduler (``tcp://host:8786``), or its scheduler file. For
            ``tls://``, Dask's own configuration names the certificates.

    Raises:
        NearfarError: ``distributed`` is not installed or the scheduler does not answer (both exit
            code 3).
    """

    def __init__(self, where: str) -> None:
        """Connect."""
        try:
            import distributed
        except ImportError:
            raise NearfarError(
                "--dask: distributed is not installed; pip install 'nearfar[dask]'", 3
            ) from None
        # nearfar prints errors itself, once.
        for name in list(logging.root.manager.loggerDict):
            if name.partition(".")[0] == "distributed":
                logging.getLogger(name).setLevel(logging.CRITICAL)
        address = {"scheduler_file": where} if Path(where).is_file() else {"address": where}
        try:
            self.client = distributed.Client(
                **address, timeout=_TIMEOUT_SECONDS, set_as_default=False
            )
        # RuntimeError: one side uses TLS and the other does not.
        except (OSError, ValueError, TimeoutError, RuntimeError, TypeError) as error:
            line = (str(error).splitlines() or [type(error).__name__])[0]
            raise NearfarError(f"--dask {where}: no scheduler there: {line}", 3) from None
        self.where = where

    def workers(self) -> int:
        """The number of cells that can run at the same time."""
        return sum(self.client.nthreads().values())

    def run(self, jobs: Sequence[Job]) -> Generator[Outcome]:
        """Run ``jobs``; yields outcomes as jobs end.

        Raises:
            NearfarError: the scheduler went away, or a worker sees another folder.
        """
        import distributed

        by_key = {
            f"nearfar-{job['key']}-{number}-{id(self)}": job for number, job in enumerate(jobs)
        }
        futures = self.client.map(
            cell.run, list(by_key.values()), key=list(by_key), pure=False, batch_size=1000
        )
        try:
            for future in distributed.as_completed(futures, loop=self.client.loop):
                outcome = self._outcome(future, by_key[future.key])
                future.release()
                yield outcome
        except (OSError, CancelledError, asyncio.CancelledError):
            raise self._gone() from None

    def _outcome(self, future: distributed.Future, job: Job) -> Outcome:
        """The outcome of a job, from disk if possible: the connection may be gone."""
        import distributed

        if future.status == "finished":
            written = cell.read_outcome(job["key"], Path(job["folder"]))
            outcome: Outcome = written or future.result()
            if outcome["status"] == "done" and written is None:
                raise NearfarError(
                    f"{job['folder']}: a cell that a worker finished is not there; workers must "
                    "see this folder under the same path: choose a shared -o"
                )
            return outcome
        if future.status != "error":
            raise self._gone()
        wrong = future.exception()
        why = f"{type(wrong).__name__}: {(str(wrong).splitlines() or [''])[0]}"
        if isinstance(wrong, distributed.KilledWorker):
            why = "its workers died, one after another; it may need more memory"
        outcome = cell.outcome_of(job, why)
        cell.write_outcome(outcome, Path(job["folder"]))
        return outcome

    def _gone(self) -> NearfarError:
        return NearfarError(
            f"--dask {self.where}: the scheduler went away; finished cells are kept: start it and "
            "run the sweep again",
            3,
        )

    def close(self) -> None:
        """Disconnect; jobs that have not started are dropped."""
        self.client.close(timeout=2)
