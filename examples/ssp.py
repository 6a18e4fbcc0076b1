"""Selective Shadow Paging (paper 003) as a policy in Python, compared with the one in Rust.

A page keeps a shadow when it is promoted, unless it was written the last time it was in fast
memory. Run it: ``python examples/ssp.py [SCALE]``, for example ``python examples/ssp.py 1/16``.
"""

from __future__ import annotations

import sys

from nearfar.tiering import Policy, tiering


class Ssp(Policy):
    """NOMAD with a shadow only for pages that are expected to stay clean.

    The paper's flag `fast_dirty` is cleared by a promotion, set by a write to any promoted page
    and tested by the next promotion.
    """

    name = "ssp-python"
    base = "nomad"

    def __init__(self) -> None:
        """Start with no page written in fast memory."""
        self.fast_dirty: set[int] = set()

    def keep_shadow(self, page: int) -> bool:
        """Decide before a promotion whether the page keeps a shadow."""
        return page not in self.fast_dirty

    def promoted(self, page: int) -> None:
        """Called after a promotion."""
        self.fast_dirty.discard(page)

    def written(self, page: int) -> None:
        """Called at the first write to a write-protected page."""
        self.fast_dirty.add(page)

    def demoting(self, page: int, dirty: bool) -> None:
        """Called before a demotion. `dirty`: the page was written since its promotion."""
        if dirty:
            self.fast_dirty.add(page)


if __name__ == "__main__":
    scale = sys.argv[1] if len(sys.argv) > 1 else "1/64"
    results = {}
    for policy in ("ssp", Ssp()):
        result = tiering("nomad-medium", policy=policy, mix="write", fast="13G", scale=scale)
        results[result.rows[0]["policy"]] = result
        copies = sum(row["shadow_copies"] for row in result.rows)
        print(f"{result.rows[0]['policy']}: {copies:,} shadow copies")
    rust, python = ([{**row, "policy": ""} for row in r.rows] for r in results.values())
    print("the same decisions" if rust == python else "DIFFERENT DECISIONS")
    rust_time, python_time = (r.wall_seconds for r in results.values())
    print(f"speed in Python: {rust_time / python_time:.0%} of Rust's", file=sys.stderr)
