"""The bench ``tiering-guest``, Linux's tiering in a guest: parser and recorded predictions."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import tiering_guest
from measure import BenchError
from table import recorded

TIERS = """\
/sys/devices/virtual/memory_tiering/memory_tier4/nodelist:0
/sys/devices/virtual/memory_tiering/memory_tier56/nodelist:1
"""
ZONES = """\
kernel 6.12.1
Node 0, zone      DMA
  per-node stats
      nr_inactive_anon 1
  pages free     3000
        min      15
        low      18
        high     21
        managed  3840
        protection: (0, 92559)
  pagesets
    cpu: 0
              high:  4642
Node 1, zone    DMA32
  pages free     148762
        min      599
        low      748
        high     897
        managed  151530
Node 1, zone   Normal
  pages free     0
        min      0
        low      0
        high     0
        managed  0
"""
TENTH = "at {}\ncold 5\nhot {}\nhits 0.5\nnr_free_pages 4\npgpromote_success {}\n"
PROGRAM = "operation 20.5\nmigration 1000\nnr_free_pages 90\n"
WHOLE = TIERS + ZONES + PROGRAM + "".join(TENTH.format(i, 2 * i, 10 + i) for i in range(11))


def test_cells_are_read() -> None:
    cell = tiering_guest.parse(WHOLE)
    assert cell["linux"] == "6.12.1" and cell["free"] == 90
    assert (cell["operation_ns"], cell["migration_ns"]) == (20.5, 1000)
    assert [*cell["zones"]] == ["0 DMA", "1 DMA32"]
    counts = {"pages free": 3000, "min": 15, "low": 18, "high": 21, "managed": 3840}
    assert cell["zones"]["0 DMA"] == counts
    assert tiering_guest.counted(cell, "promotions") == 10
    cell["predicted"] = {"promotions": 12, "hits": [0.6] * 10, "fast_pages": [15] * 10}
    cell["program"] = {"cold": 60, "hot": 40}
    assert tiering_guest.count_error(cell, "promotions") == pytest.approx(20)
    assert tiering_guest.share_errors(cell) == pytest.approx([10] * 10)
    # 15 pages are predicted; there are 5 cold ones, and 2 more hot ones after each tenth.
    assert tiering_guest.page_errors(cell) == pytest.approx([8 - 2 * i for i in range(10)])


def test_a_single_tier_and_truncated_output_are_refused() -> None:
    with pytest.raises(BenchError, match="one memory tier"):
        tiering_guest.parse(WHOLE.replace("memory_tier56", "other"))
    with pytest.raises(BenchError, match="ended early"):
        tiering_guest.parse(WHOLE.rsplit("at ", 1)[0])


@pytest.mark.parametrize("lists", [*tiering_guest.LISTS])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            one.name,
            marks=pytest.mark.long("more operations") if one.operations > 10_000_000 else (),
        )
        for one in tiering_guest.PROGRAMS
    ],
)
def test_recorded_predictions_are_reproduced(name: str, lists: str, tmp_path: Path) -> None:
    cells = recorded(tiering_guest.NAME)["cells"]
    (own,) = (c for c in cells if c["program"]["name"] == name and c["lists"] == lists)
    assert tiering_guest.predict(own, tmp_path) == own["predicted"]
