"""Tables, terminal plots and self-contained HTML pages.

:func:`report` draws a folder of results as the page of its study.
"""

from __future__ import annotations

from pathlib import Path


def report(folder: str | Path) -> str:
    """One self-contained page of a folder of results.

    Args:
        folder: made by ``-o`` of a study that has a page.

    Returns:
        The page's text, to be written as UTF-8.

    Raises:
        NearfarError: no run, or one without a page, such as a sweep.
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
    except NearfarError as error:  # A question without a page, or too many rows for a page.
        raise NearfarError(f"{opened.path}: {error}; {other}") from None
    except _DAMAGED as error:
        what = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise NearfarError(
            f"{opened.path}: is not a complete run of this version ({what}); run the study again"
        ) from None


#: Errors while a run that was changed, or that another version wrote, is drawn.
_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
