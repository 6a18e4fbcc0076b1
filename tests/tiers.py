"""Run a program under ``nearfar run`` in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from conftest import HANG
from nearfar import live

needs_userfaultfd = pytest.mark.skipif(live.refused() is not None, reason=str(live.refused()))


def run(*words: str, **options: object) -> tuple[str, live.Outcome]:
    """The program's standard output, and the outcome of the run."""
    script = (
        "import json, sys\nfrom nearfar import live\nasked = json.loads(sys.argv[1])\n"
        "done = live.run(asked['words'], **asked['options'])\n"
        "print(done.to_json(), file=sys.stderr)"
    )
    asked = json.dumps({"words": words, "options": options})
    done = subprocess.run(
        [sys.executable, "-c", script, asked],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG,
    )
    outcome = live.Outcome(**json.loads(done.stderr[done.stderr.index("{") :]))
    assert outcome.why is None, outcome.why
    return done.stdout, outcome
