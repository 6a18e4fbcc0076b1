"""The bench ``thp-guest``, huge pages under a guest's older kernel: its parser."""

from __future__ import annotations

import pytest
from cases import thp_guest
from measure import BenchError

COUNTS = "{0} thp_fault_alloc {1}\n{0} thp_fault_fallback 0\n{0} thp_collapse_alloc 3\n"
COUNTS += "{0} thp_split_pmd {1}\n"
WHOLE = (
    "kernel 6.12.1\npolicy always\nseconds 1.25\n"
    + COUNTS.format("before", 4)
    + "".join(f"at {tenth}\n" for tenth in range(10))
    + COUNTS.format("after", 9)
)


def test_output_of_a_guest_is_parsed() -> None:
    cell = thp_guest.parse(WHOLE)["always"]
    assert (cell["linux"], cell["seconds"]) == ("6.12.1", 1.25)
    assert cell["counts"] == {"huge_faults": 5, "fallbacks": 0, "merges": 0, "splits": 5}
    assert cell["course"][9] == [9 << 10, 0]
    with pytest.raises(BenchError, match="ended early: at 9"):
        thp_guest.parse(WHOLE.partition("after")[0])
