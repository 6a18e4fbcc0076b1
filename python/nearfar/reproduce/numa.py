"""aliusM (004) against the ``numa`` study: tables 1 and 2 and what the text states."""

from __future__ import annotations

from nearfar import _engine
from nearfar.declared import reproduce as declared
from nearfar.numa import MACHINE
from nearfar.numa.paper import measures
from nearfar.reproduce import Reproduced, compared, statements


def rows(all_modules: bool = False) -> list[declared.Row]:
    """A row for each statement of ``papers/004/statements.toml``.

    Args:
        all_modules: as for :func:`nearfar.numa.alloc`.
    """
    found = measures(all_modules)
    return [
        statement.row(float(f"{ours:.6g}"), note)
        for statement in statements("004")
        for ours, note in [found[statement.key]]
    ]


def study() -> Reproduced:
    """The rows, and how many hold if a core fills all modules at once."""
    usual = rows()
    cases = [
        compared("as chosen", "one module at a time", usual, usual),
        compared("all modules at once", "pages are interleaved", rows(True), usual),
    ]
    run = {"study": "reproduce numa", "machine": MACHINE, "version": _engine.__version__}
    return Reproduced(usual, run, cases)
