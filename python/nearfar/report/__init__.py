"""Tables, terminal plots and self-contained HTML pages.

:func:`report` draws any folder of results, or several of one study, as one page.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def report(runs: Sequence[str | Path]) -> str:
    """One self-contained page of folders of results.

    Args:
        runs: folders that a study's ``-o`` or ``nearfar sweep`` made. A single run of a study that
            has a page of its own gets that; anything else a table to filter, a chart whose axes can
            be chosen, and paired differences.

    Returns:
        The page's text, to be written as UTF-8.

    Raises:
        NearfarError: no run there, or runs of different studies.
    """
    from nearfar.errors import NearfarError
    from nearfar.report.html.explore import ExplorePage
    from nearfar.run_folder import open_run

    opened = [open_run(run) for run in runs]
    if not opened:
        raise NearfarError("report: no run is named; give folders that a study's -o made")
    studies = list(dict.fromkeys(run.study.name for run in opened))
    if len(studies) > 1:
        raise NearfarError(
            f"report: runs of different studies: {', '.join(studies)}; give runs of one study"
        )
    try:
        if len(opened) == 1:
            # A study or a question of it without a page, or more rows than the page takes.
            with suppress(NearfarError):
                return opened[0].result.html()
        return ExplorePage(opened).html()
    except _DAMAGED as error:
        what = " ".join(f"{type(error).__name__} {error}".split())[:200]
        raise NearfarError(
            f"{opened[0].path}: holds no whole run of this version ({what}); run the study again"
        ) from None


#: What drawing ends in where a run was changed since it was written, or by another version.
_DAMAGED = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
