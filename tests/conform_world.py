"""Run a program under nearfar in a process of its own, and write the outcome to a file.

python tests/conform_world.py run|capture OUTCOME OPTIONS WORD...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def run(words: list[str], options: dict[str, Any]) -> dict[str, Any]:
    from nearfar import live

    done = live.run(words, **options)
    return {"exit": done.exit_code, "why": done.why, "counters": done.counters}


def capture(words: list[str], options: dict[str, Any]) -> dict[str, Any]:
    """Also verifies the trace."""
    from nearfar import capture as capturing
    from nearfar.info import info

    done = capturing.run(words, **options)
    info(options["output"], verify=True, heatmap=False)
    if done.signal is not None:
        return {"exit": 128 + done.signal}
    return {"exit": done.exit_code, "why": done.info["incomplete_reason"]}


if __name__ == "__main__":
    kind, outcome, asked, *program = sys.argv[1:]
    made = {"run": run, "capture": capture}[kind](program, json.loads(asked))
    Path(outcome).write_text(json.dumps(made))
