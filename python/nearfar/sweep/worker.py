"""The worker process of a sweep: reads a job per line, as JSON, and writes an outcome per line.

A job runs one cell of the sweep. The worker ends when its input ends, so after a killed sweep it
finishes at most one cell.
"""

from __future__ import annotations

import json
import os

from nearfar.sweep import cell


def main() -> None:
    """Run jobs until the input ends."""
    # Jobs and outcomes use copies of descriptors 0 and 1. Libraries and programs that use these two
    # get /dev/null and standard error.
    outcomes = os.fdopen(os.dup(1), "w", encoding="utf-8")
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for line in jobs:
        outcome = cell.run(json.loads(line))
        try:
            print(json.dumps(outcome), file=outcomes, flush=True)
        except BrokenPipeError:
            # The sweep has ended; the cell is on disk.
            os._exit(0)


if __name__ == "__main__":
    main()
