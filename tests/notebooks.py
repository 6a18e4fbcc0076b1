"""Run the notebooks of examples/notebooks; as a program (``make notebooks``), store their outputs.

Charts are stored as images, which show without scripts.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat
from nbformat import NotebookNode

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "examples" / "notebooks").glob("*.ipynb"))
IMAGES = "import altair\naltair.renderers.enable('png', ppi=72)"
#: The kinds of output to store: not Altair's specification and scripts.
KINDS = ("image/png", "text/html", "text/plain")


def run(path: Path, folder: Path, timeout: float) -> NotebookNode:
    """The notebook with the outputs of a run in ``folder``."""
    book = nbformat.read(path, as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(IMAGES))
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        book, timeout=timeout, kernel_name="python3", resources=resources
    )
    client.execute()
    del book.cells[0]
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    for number, cell in enumerate(code, 1):
        cell.execution_count = number
        cell.metadata.pop("execution", None)
        # Rich leaves an empty output where it reports progress.
        cell.outputs = [one for one in cell.outputs if one.get("data", {}).get("text/plain") != ""]
        for output in cell.outputs:
            if "data" in output:
                output.data = {kind: output.data[kind] for kind in KINDS if kind in output.data}
            if "execution_count" in output:
                output.execution_count = number
    return book


def kinds(book: NotebookNode) -> list[list[list[str]]]:
    """The kinds of each output, by code cell."""
    return [
        [sorted(output.get("data", {"stream": ""})) for output in cell.outputs]
        for cell in book.cells
        if cell.cell_type == "code"
    ]


def main() -> None:
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            book = run(path, Path(folder), 600)
        book.metadata = nbformat.read(path, as_version=4).metadata
        nbformat.write(book, path)
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
