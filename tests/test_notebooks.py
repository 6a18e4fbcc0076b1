"""The notebooks of examples/notebooks run from the first cell to the last, and are kept empty."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

from conftest import HANG

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples" / "notebooks").glob("*.ipynb"))
ALL = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) >= 3


@ALL
def test_no_output_is_kept(path: Path) -> None:
    """What a cell printed on some machine is no source."""
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    for cell in book.cells:
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None


@ALL
def test_it_runs(path: Path, tmp_path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        book, timeout=HANG, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    shown = [
        output.data.get("text/html", "")
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if "data" in output
    ]
    assert sum("vegaEmbed" in html for html in shown) >= 2, "charts are not shown"
    assert any("<table" in html for html in shown), "no rows are shown"
