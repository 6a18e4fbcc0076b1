"""aliusM (004) against the ``numa`` study: tables 1 and 2 and what the text states."""

from __future__ import annotations

from nearfar.declared.reproduce import Row
from nearfar.numa.paper import measures
from nearfar.reproduce import statements


def rows() -> list[Row]:
    """A row for each statement of ``papers/004/statements.toml``."""
    found = measures()
    return [one.row(float(f"{ours:.6g}"), note)
            for one in statements("004") for ours, note in [found[one.key]]]  # fmt: skip
