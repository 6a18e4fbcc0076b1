"""The notebooks of examples/notebooks run from first to last cell, and show their outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from conftest import HANG
from notebooks import NOTEBOOKS, kinds, run

ALL = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def test_there_are_at_least_three() -> None:
    assert len(NOTEBOOKS) >= 3


@ALL
@pytest.mark.long("whole notebooks; make docs runs them")
def test_stored_outputs_have_the_kinds_of_a_run(path: Path, tmp_path: Path) -> None:
    """Their numbers may differ, as another machine may have stored them."""
    stored = nbformat.read(path, as_version=4)
    nbformat.validate(stored)
    book = run(path, tmp_path, HANG)
    assert kinds(book) == kinds(stored), "make notebooks"
    shown = sum(kinds(book), [])
    assert sum("image/png" in one for one in shown) >= 2, "charts are not shown"
    assert any("text/html" in one for one in shown), "no rows are shown"
    assert "/tmp/" not in path.read_text(encoding="utf-8")
