"""Results as tables, terminal plots and self-contained HTML pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearfar.result import Result


def report(folder: str | Path | Sequence[str | Path]) -> str:
    """A self-contained page of a folder of results, or of several runs of a study.

    Args:
        folder: made by ``-o`` of a study that has a page, or by ``nearfar sweep``; or several.

    Returns:
        The page's text, to be written as UTF-8.

    Raises:
        NearfarError: a folder holds no run, its study has no page, or the studies differ.
    """
    from nearfar.errors import NearfarError
    from nearfar.report.runs import together
    from nearfar.run_folder import open_run

    folders = [folder] if isinstance(folder, str | Path) else list(folder)
    if len(folders) > 1:
        return _page(", ".join(map(str, folders)), together(folders), "in the folders")
    opened = open_run(folders[0])
    rows = opened.path / ("dataset" if opened.is_sweep else "result.parquet")
    if opened.result.page is None:
        raise NearfarError(
            f"{opened.path}: a run of {opened.study.name} has no page; its rows are in {rows}, for "
            "DuckDB, Polars or pandas; `nearfar diff` compares two runs"
        )
    return _page(str(opened.path), opened.result, f"in {rows}")


def _page(name: str, result: Result, rows: str) -> str:
    """The page of a result.

    Args:
        name: the folders, for error messages.
        result: the result.
        rows: where its rows are, for error messages.
    """
    from nearfar.errors import NearfarError

    try:
        return result.html()
    except NearfarError as error:  # The result has no page, or too many rows for one.
        raise NearfarError(
            f"{name}: {error}; its rows are {rows}, for DuckDB, Polars or pandas; `nearfar diff` "
            "compares two runs"
        ) from None
    except _DAMAGED as error:
        what = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise NearfarError(
            f"{name}: is not a complete run of this version ({what}); run the study again"
        ) from None


#: Errors from drawing a run that was modified, or that another version wrote.
_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
