"""Measure the processor time of the steps of ``make test``, including all child processes.

    python3 tests/processor.py run FILE STEP COMMAND...    run it; add its seconds to FILE
    python3 tests/processor.py report FILE MINUTES         print the steps beside a budget

Exceeding the budget is reported, but is no failure: another machine, or a busy one, needs more.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path


def run(file: Path, step: str, command: list[str]) -> int:
    """Run a step; return its exit code."""
    code = subprocess.run(command, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    file.parent.mkdir(exist_ok=True)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{used.ru_utime + used.ru_stime:.1f} {step}\n")
    return code if code >= 0 else 128 - code


def report(file: Path, minutes: float) -> str:
    """Processor time of all steps together, then of each."""
    steps = [line.split(maxsplit=1) for line in file.read_text(encoding="utf-8").splitlines()]
    lines = [f"  {float(seconds) / 60:5.1f} min  {step}" for seconds, step in steps]
    used = sum(float(seconds) for seconds, _ in steps) / 60
    over = "; over it: see CONTRIBUTING.md, Tests" if used > minutes else ""
    head = f"processor time: {used:.1f} minutes of a budget of {minutes:g}{over}"
    return "\n".join([head, *lines])


def main(words: list[str]) -> int:
    file = Path(words[1])
    if words[0] == "run":
        return run(file, words[2], words[3:])
    print(report(file, float(words[2])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
