"""A process that runs cells for a sweep on the same machine: a line of JSON in, a line out.

It ends when its input ends, so it never outlives a sweep that was killed by more than one cell.
"""

from __future__ import annotations

import json
import os

from nearfar.sweep import cell


def main() -> None:
    """Serve until the input ends."""
    # What a library or a program prints must not come between the lines, nor read them.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for line in jobs:
        outcome = cell.run(json.loads(line))
        try:
            print(json.dumps(outcome), file=answers, flush=True)
        except BrokenPipeError:
            # The sweep is gone; the cell is kept all the same.
            os._exit(0)


if __name__ == "__main__":
    main()
