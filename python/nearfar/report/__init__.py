"""Tables, terminal plots and self-contained HTML pages.

:func:`report` draws a folder of results as the page of its study.
"""

from __future__ import annotations

from pathlib import Path


def report(folder: str | Path) -> str:
    """One self-contained page of a folder of results.

    Args:
        folder: what ``-o`` of a study that has a page made.

    Returns:
        The page's text, to be written as UTF-8.

    Raises:
        NearfarError: no run there, or one without a page, such as a sweep.
    """
    from nearfar.errors import NearfarError
    from nearfar.run_folder import open_run

    opened = open_run(folder)
    rows = opened.path / ("dataset" if opened.is_sweep else "result.parquet")
    other = (
        f"its rows are in {rows}, for DuckDB, Polars or pandas; `nearfar diff` compares two runs"
    )
    if opened.result.page is None:
        what = "a sweep" if opened.is_sweep else f"a run of {opened.study.name}"
        raise NearfarError(f"{opened.path}: {what} has no page; {other}")
    try:
        return opened.result.html()
    except NearfarError as error:  # A question without a page, or more rows than a page takes.
        raise NearfarError(f"{opened.path}: {error}; {other}") from None
    except _DAMAGED as error:
        what = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise NearfarError(
            f"{opened.path}: holds no whole run of this version ({what}); run the study again"
        ) from None


#: What drawing ends in where a run was changed since it was written, or by another version.
_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
