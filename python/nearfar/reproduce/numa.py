"""Paper 004 (aliusM) against the ``numa`` study: tables 1 and 2 and what the text states."""

from __future__ import annotations

from nearfar import _engine
from nearfar.declared import reproduce as declared
from nearfar.numa import MACHINE
from nearfar.numa.paper import measures
from nearfar.reproduce import Reproduced, compared, measured


def rows(all_modules: bool = False) -> list[declared.Row]:
    """A row for each statement of ``papers/004/statements.toml``.

    Args:
        all_modules: as for :func:`nearfar.numa.alloc`.
    """
    return measured("004", measures(all_modules).__getitem__)


def study(*, rows_only: bool = False) -> Reproduced:
    """The rows, and (the sensitivity) how many hold if a core fills all modules at once.

    Args:
        rows_only: leave out the sensitivity.
    """
    usual = rows()
    run = {"study": "reproduce numa", "machine": MACHINE, "version": _engine.__version__}
    if rows_only:
        return Reproduced(usual, run)
    cases = [
        compared("as chosen", "one module at a time", usual, usual),
        compared("all modules at once", "pages are interleaved", rows(True), usual),
    ]
    return Reproduced(usual, run, cases)
