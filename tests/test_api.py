"""``import nearfar`` gives every verb as a function."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import nearfar


def test_verbs_are_called_by_their_names(mixed: Path) -> None:
    from nearfar.paging import paging

    options = {"page_sizes": "4K,8K", "memory": "50%"}
    assert nearfar.paging(mixed, **options).rows == paging(mixed, **options).rows
    assert inspect.signature(nearfar.paging) == inspect.signature(paging)
    assert inspect.ismodule(nearfar.paging)
    assert nearfar.tiering.policies()
    verbs = ["advise", "capture", "diff", "explain", "generate", "info", "report", "reproduce"]
    for verb in [*verbs, "ssd", "sweep", "tiering"]:
        assert callable(getattr(nearfar, verb)), verb
    assert not callable(nearfar.machine)


@pytest.mark.parametrize(
    "code",
    [
        "import nearfar; nearfar.generate('zipf', 'z.trace', refs=1000, pages=10)",
        "import nearfar.generate; nearfar.generate('zipf', 'z.trace', refs=1000, pages=10)",
        "from nearfar import generate; generate('zipf', 'z.trace', refs=1000, pages=10)",
        "from nearfar.generate import generate; generate('zipf', 'z.trace', refs=1000, pages=10)",
    ],
)
def test_however_they_are_imported(code: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert (tmp_path / "z.trace" / "trace.json").is_file()


def test_importing_is_cheap_and_unknown_names_are_errors() -> None:
    code = "import sys, nearfar; print('scipy' in sys.modules, 'nearfar.paging' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
    assert "paging" in dir(nearfar)
    with pytest.raises(AttributeError, match="no attribute 'pagign'"):
        _ = nearfar.pagign
